// SPDX-License-Identifier: Apache-2.0
// Three steps: the frame (lengths, UTF-8), the syntax (a SAX handler that knows the three levels there may
// be), the layout (sizes against shapes, tensors against each other).
#include "checkpoint/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "checkpoint/text.h"
#include "core/bits.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMetadataEntries = 10'000;  // published files have one or two

/// An entry of the header as it says, not yet believed.
struct Entry {
  std::string name;
  std::string dtype = {};
  std::vector<std::uint64_t> shape = {};
  std::uint64_t begin = 0, end = 0;
};

struct RawHeader {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

std::string advice() {
  return "The file is damaged or was not written by a safetensors library: fetch it again";
}

/// The JSON text, after everything that can be said without parsing it.
std::string_view header_text(std::span<const std::byte> file, const std::string& file_name) {
  const auto refuse = [&](const char* code, std::string what, std::string why = {}) {
    fail(ErrorKind::corrupt_file,
         {.code = code, .what = std::move(what), .file = file_name, .why = std::move(why), .todo = advice()});
  };
  if (file.size() < kLengthBytes)
    refuse("file_too_short",
           fmt::format("the file has {} bytes, a header's length alone takes 8", file.size()));
  static_assert(std::endian::native == std::endian::little, "file numbers are little endian");
  const auto length = load<std::uint64_t>(file.data());
  if (length > limits::kHeaderBytes)
    refuse("header_over_limit",
           fmt::format("the header claims {} bytes, at most {} are read", length, limits::kHeaderBytes));
  if (length > file.size() - kLengthBytes)
    refuse("header_past_end", fmt::format("the header claims {} bytes, the file has {} after its length",
                                          length, file.size() - kLengthBytes));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (!text.starts_with('{'))
    refuse("header_no_object",
           fmt::format("the header starts with \"{}\" instead of {{", printable(text.substr(0, 1))));
  if (const auto bad = bad_utf8(text))
    refuse("header_not_utf8", fmt::format("byte {} of the header is no UTF-8", *bad));
  const std::size_t last = text.find_last_not_of(' ');
  if (text[last] != '}')
    refuse("header_bad_end", fmt::format("the header ends with \"{}\", only spaces may follow its last }}",
                                         printable(text.substr(last, 1))));
  return text.substr(0, last + 1);
}

/// Turns SAX events into a RawHeader. Throws on the first thing that does not belong.
class HeaderHandler {
 public:
  using number_integer_t = std::int64_t;
  using number_unsigned_t = std::uint64_t;
  using number_float_t = double;
  using string_t = std::string;
  using binary_t = nlohmann::json::binary_t;

  explicit HeaderHandler(const std::string& file_name) : file_name_(file_name) {}
  RawHeader take() { return std::move(header_); }

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("true or false"); }
  bool number_integer(number_integer_t value) {
    return unexpected(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) {
    return unexpected(fmt::format("the number {}, no unsigned 64-bit integer", printable(text)));
  }
  bool binary(binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    if (level_ == Level::shape) {
      require(entry().shape.size() < limits::kRank, ErrorKind::corrupt_file, [&] {
        return info("rank_over_limit", fmt::format("the tensor has more than {} dimensions", limits::kRank));
      });
      entry().shape.push_back(value);
      return true;
    }
    if (level_ != Level::offsets) return unexpected(fmt::format("the number {}", value));
    require(offsets_ < 2, ErrorKind::corrupt_file,
            [&] { return info("bad_offsets", "data_offsets holds more than two numbers"); });
    (offsets_++ == 0 ? entry().begin : entry().end) = value;
    return true;
  }

  bool string(string_t& value) {
    if (level_ == Level::metadata) {
      require(header_.metadata.size() < kMetadataEntries, ErrorKind::corrupt_file, [&] {
        return info("metadata_too_large",
                    fmt::format("__metadata__ has more than {} entries", kMetadataEntries));
      });
      const bool added = header_.metadata.emplace(key_, std::move(value)).second;
      require(added, ErrorKind::corrupt_file, [&] {
        return info("duplicate_metadata", fmt::format("__metadata__ has \"{}\" twice", printable(key_)));
      });
      return true;
    }
    if (level_ != Level::tensor || key_ != "dtype")
      return unexpected(fmt::format("the text \"{}\"", printable(value)));
    entry().dtype = std::move(value);
    return true;
  }

  bool key(string_t& value) {
    key_ = std::move(value);
    if (level_ == Level::tensor) return field();
    if (level_ == Level::top && key_ != "__metadata__") check_name();
    return true;
  }

  bool start_object(std::size_t) {
    if (level_ == Level::outside) return enter(Level::top);
    if (level_ != Level::top) return unexpected("an object");
    if (key_ == "__metadata__") {
      require(!seen_metadata_, ErrorKind::corrupt_file,
              [&] { return info("duplicate_metadata", "__metadata__ is there twice"); });
      seen_metadata_ = true;
      return enter(Level::metadata);
    }
    require(header_.entries.size() < limits::kTensors, ErrorKind::corrupt_file, [&] {
      return info("too_many_tensors", fmt::format("the file lists more than {} tensors", limits::kTensors));
    });
    header_.entries.push_back({.name = key_});
    fields_ = {};
    return enter(Level::tensor);
  }

  bool end_object() {
    if (level_ == Level::tensor)
      for (const auto& [name, seen] :
           {std::pair{"dtype", fields_.dtype}, {"shape", fields_.shape}, {"data_offsets", fields_.offsets}})
        require(seen, ErrorKind::corrupt_file,
                [&, n = name] { return info("missing_field", fmt::format("the tensor has no {}", n)); });
    return enter(level_ == Level::top ? Level::outside : Level::top);
  }

  bool start_array(std::size_t) {
    if (level_ != Level::tensor || key_ == "dtype") return unexpected("an array");
    offsets_ = 0;
    return enter(key_ == "shape" ? Level::shape : Level::offsets);
  }

  bool end_array() {
    require(level_ != Level::offsets || offsets_ == 2, ErrorKind::corrupt_file,
            [&] { return info("bad_offsets", "data_offsets holds fewer than two numbers"); });
    return enter(Level::tensor);
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    const std::string_view text = error.what();
    const std::size_t colon = text.find(": ");
    fail(ErrorKind::corrupt_file,
         {.code = "header_not_json",
          .what = fmt::format("the header is no JSON from byte {} on", position),
          .file = file_name_,
          .tensor = header_.entries.empty() ? "" : printable(header_.entries.back().name),
          .why = printable(colon == text.npos ? text : text.substr(colon + 2)),
          .todo = advice()});
  }

 private:
  enum class Level { outside, top, metadata, tensor, shape, offsets };
  struct Fields {
    bool dtype = false, shape = false, offsets = false;
  };

  Entry& entry() { return header_.entries.back(); }

  bool enter(Level level) {
    level_ = level;
    return true;
  }

  ErrorInfo info(const char* code, std::string what) const {
    const bool inside = level_ == Level::tensor || level_ == Level::shape || level_ == Level::offsets;
    return {.code = code,
            .what = std::move(what),
            .file = file_name_,
            .tensor = inside ? printable(header_.entries.back().name) : std::string(),
            .todo = advice()};
  }

  [[noreturn]] bool unexpected(std::string_view found) {
    constexpr std::string_view kPlaces[] = {"before the header's object",
                                            "where a tensor's description belongs",
                                            "in __metadata__, which holds texts only",
                                            "in a tensor's description",
                                            "in a shape, which holds unsigned integers only",
                                            "in data_offsets, which holds unsigned integers only"};
    const std::string at =
        level_ == Level::outside || key_.empty() ? "" : fmt::format(" at \"{}\"", printable(key_));
    fail(ErrorKind::corrupt_file,
         info("header_wrong_type",
              fmt::format("{} stands {}{}", found, kPlaces[static_cast<int>(level_)], at)));
  }

  bool field() {
    bool* seen = key_ == "dtype"          ? &fields_.dtype
                 : key_ == "shape"        ? &fields_.shape
                 : key_ == "data_offsets" ? &fields_.offsets
                                          : nullptr;
    require(seen != nullptr, ErrorKind::corrupt_file, [&] {
      return info("unknown_field",
                  fmt::format("the tensor has \"{}\", which the format does not know", printable(key_)));
    });
    require(!*seen, ErrorKind::corrupt_file,
            [&] { return info("duplicate_field", fmt::format("the tensor has {} twice", printable(key_))); });
    *seen = true;
    return true;
  }

  void check_name() const {
    require(key_.size() <= limits::kNameBytes, ErrorKind::corrupt_file, [&] {
      return info("name_too_long", fmt::format("a tensor's name has {} bytes, at most {} are allowed: \"{}\"",
                                               key_.size(), limits::kNameBytes, printable(key_)));
    });
    require(!has_control_characters(key_), ErrorKind::corrupt_file, [&] {
      return info("name_with_control_characters",
                  fmt::format("a tensor's name holds control characters: \"{}\"", printable(key_)));
    });
  }

  const std::string& file_name_;
  RawHeader header_;
  Level level_ = Level::outside;
  std::string key_;
  Fields fields_;
  int offsets_ = 0;
  bool seen_metadata_ = false;
};

/// Shape times bits in bytes, or an error: every product is checked against 2^48 before it is formed.
class EntryChecker {
 public:
  EntryChecker(const Entry& entry, const std::string& file_name) : entry_(entry), file_name_(file_name) {}

  /// The view, after the entry was found to agree with itself. `data` are the file's bytes after the header.
  TensorView view(std::span<const std::byte> data) const {
    const auto dtype = parse_dtype(entry_.dtype);
    if (!dtype)
      refuse("unknown_dtype", fmt::format("the data type \"{}\" is unknown", printable(entry_.dtype)));
    TensorView tensor{.dtype = *dtype};
    tensor.shape.assign(entry_.shape.begin(), entry_.shape.end());
    const std::uint64_t bytes = claimed_bytes(*dtype);
    if (entry_.begin > entry_.end)
      refuse("offsets_reversed",
             fmt::format("its data end at {}, before they begin at {}", entry_.end, entry_.begin));
    if (entry_.end > data.size())
      refuse("offset_past_end",
             fmt::format("its data end at byte {}, the file's data at {}", entry_.end, data.size()));
    if (entry_.end - entry_.begin != bytes)
      refuse("size_mismatch",
             fmt::format("{} {} takes {} bytes, its offsets {} to {} hold {}", name(*dtype),
                         tensor.shape_text(), bytes, entry_.begin, entry_.end, entry_.end - entry_.begin));
    tensor.data = data.data() + entry_.begin;
    return tensor;
  }

 private:
  [[noreturn]] void refuse(const char* code, std::string what) const {
    fail(ErrorKind::corrupt_file, {.code = code,
                                   .what = std::move(what),
                                   .file = file_name_,
                                   .tensor = printable(entry_.name),
                                   .todo = advice()});
  }

  std::uint64_t claimed_bytes(DType dtype) const {
    std::uint64_t elements = 1;
    for (const std::uint64_t dimension : entry_.shape)
      if (dimension >= limits::kNumber || __builtin_mul_overflow(elements, dimension, &elements) ||
          elements >= limits::kNumber)
        refuse("size_overflow",
               fmt::format("its shape [{}] has more than 2^48 elements", fmt::join(entry_.shape, ", ")));
    const std::uint64_t bits_in_all = elements * static_cast<std::uint64_t>(bits(dtype));  // below 2^48 * 64
    if (bits_in_all % 8 != 0)
      refuse("odd_bits", fmt::format("{} elements of {} bits are no whole bytes", elements, bits(dtype)));
    return bits_in_all / 8;
  }

  const Entry& entry_;
  const std::string& file_name_;
};

/// The order of the entries by offset. Throws unless they cover the data without gap or overlap.
std::vector<std::size_t> check_layout(const std::vector<Entry>& entries, std::size_t data_bytes,
                                      const std::string& file_name) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) { return std::tie(entries[i].begin, entries[i].end, entries[i].name); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  std::uint64_t covered = 0;
  std::string_view previous;
  for (const std::size_t i : order) {
    const Entry& entry = entries[i];
    require(entry.begin == covered, ErrorKind::corrupt_file, [&] {
      const bool gap = entry.begin > covered;
      return ErrorInfo{
          .code = gap ? "gap_between_tensors" : "tensors_overlap",
          .what = gap ? fmt::format("bytes {} to {} of the data belong to no tensor", covered, entry.begin)
                      : fmt::format("it begins at byte {}, inside \"{}\" that ends at {}", entry.begin,
                                    printable(previous), covered),
          .file = file_name,
          .tensor = printable(entry.name),
          .todo = advice()};
    });
    covered = entry.end;
    previous = entry.name;
  }
  require(covered == data_bytes, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{
        .code = "bytes_after_last_tensor",
        .what = fmt::format("the last tensor ends at byte {}, the file's data at {}", covered, data_bytes),
        .file = file_name,
        .tensor = printable(previous),
        .todo = advice()};
  });
  return order;
}

void check_unique(const std::vector<Entry>& entries, const std::string& file_name) {
  std::vector<const Entry*> sorted;
  sorted.reserve(entries.size());
  for (const Entry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const Entry* a, const Entry* b) { return a->name < b->name; });
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end(),
                                        [](const Entry* a, const Entry* b) { return a->name == b->name; });
  require(twice == sorted.end(), ErrorKind::corrupt_file, [&] {
    const auto [first, second] = std::minmax((*twice)->begin, (*(twice + 1))->begin);
    return ErrorInfo{
        .code = "duplicate_tensor",
        .what = fmt::format("the header lists a tensor twice, at bytes {} and {} of the data", first, second),
        .file = file_name,
        .tensor = printable((*twice)->name),
        .todo = advice()};
  });
}

}  // namespace

Header parse_header(std::span<const std::byte> file, const std::string& file_name) {
  const std::string_view text = header_text(file, file_name);
  HeaderHandler handler(file_name);
  nlohmann::json::sax_parse(text, &handler);
  RawHeader raw = handler.take();
  check_unique(raw.entries, file_name);

  const std::size_t data_begin = kLengthBytes + load<std::uint64_t>(file.data());
  const std::span<const std::byte> data = file.subspan(data_begin);
  std::vector<TensorView> views;
  views.reserve(raw.entries.size());
  for (const Entry& entry : raw.entries) views.push_back(EntryChecker(entry, file_name).view(data));

  Header header{.names = {}, .tensors = {}, .metadata = std::move(raw.metadata)};
  for (const std::size_t i : check_layout(raw.entries, data.size(), file_name)) {
    header.names.push_back(std::move(raw.entries[i].name));
    header.tensors.push_back(std::move(views[i]));
  }
  return header;
}

}  // namespace sluice::checkpoint
