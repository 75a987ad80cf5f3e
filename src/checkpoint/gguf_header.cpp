// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "checkpoint/text.h"
#include "core/bits.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr char kMagic[] = {'G', 'G', 'U', 'F'};
constexpr std::uint64_t kMostNumber = std::uint64_t{1} << 48;  // a dimension, a count of elements or bytes
constexpr std::size_t kLeastKey = 8 + 4 + 1;                   // an empty name and a byte
constexpr std::size_t kLeastTensor = 8 + 4 + 8 + 4 + 8;        // an empty name and one dimension

class Parser {
 public:
  Parser(std::span<const std::byte> file, const std::string& file_name)
      : file_(file), file_name_(file_name) {}

  GgufHeader parse() {
    start();
    const std::uint64_t tensors =
        count("tensors", limits::kGgufTensors, kLeastTensor, "gguf_too_many_tensors");
    const std::uint64_t keys = count("keys", limits::kGgufKeys, kLeastKey, "gguf_too_many_keys");
    for (std::uint64_t i = 0; i < keys; ++i) read_key();
    sort_keys();
    read_alignment();
    for (std::uint64_t i = 0; i < tensors; ++i) read_tensor();
    place_tensors();
    sort_tensors();
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse(const char* code, std::string what, std::string_view tensor = {},
                           std::string why = {}, ErrorKind kind = ErrorKind::corrupt_file) const {
    fail(kind, {.code = code,
                .what = std::move(what),
                .file = file_name_,
                .tensor = printable(tensor),
                .why = std::move(why),
                .todo = "Fetch the file again; if it is as published, what wrote it is at fault"});
  }

  std::size_t left() const { return std::min(file_.size(), limits::kGgufMetadataBytes) - at_; }

  const std::byte* take(std::uint64_t bytes, std::string_view of) {
    if (bytes > left()) {
      if (file_.size() > limits::kGgufMetadataBytes && bytes <= file_.size() - at_)
        refuse("gguf_metadata_too_long",
               fmt::format("the metadata goes on beyond {} bytes, at {}", limits::kGgufMetadataBytes, of));
      refuse("gguf_truncated", fmt::format("{} at byte {} takes {} bytes, and {} are left of the file", of,
                                           at_, bytes, left()));
    }
    const std::byte* data = file_.data() + at_;
    at_ += static_cast<std::size_t>(bytes);
    return data;
  }

  template <class T>
  T number(std::string_view of) {
    return load<T>(take(sizeof(T), of));
  }

  std::string_view text(std::string_view of) {
    const auto length = number<std::uint64_t>(of);
    return {reinterpret_cast<const char*>(take(length, of)), static_cast<std::size_t>(length)};
  }

  void start() {
    if (!is_gguf(file_)) refuse("gguf_bad_magic", "the file does not start with GGUF");
    at_ = sizeof(kMagic);
    const auto version = number<std::uint32_t>("the version");
    if (version != 0 && (version & 0xFFFFu) == 0)
      refuse("gguf_big_endian", fmt::format("the version is {}: the file is big endian", version), {},
             "big endian files are not read", ErrorKind::unsupported);
    if (version != 2 && version != 3)
      refuse("gguf_version", fmt::format("the version is {}, known are 2 and 3", version), {}, {},
             ErrorKind::unsupported);
  }

  std::uint64_t count(const char* of, std::uint64_t most, std::size_t least_bytes, const char* code) {
    const auto value = number<std::uint64_t>(of);
    if (value > most)
      refuse(code, fmt::format("the file claims {} {}, at most {} are read", value, of, most));
    if (value * least_bytes > file_.size())
      refuse(code,
             fmt::format("the file claims {} {}, which do not fit its {} bytes", value, of, file_.size()));
    return value;
  }

  GgufType value_type(std::string_view key) {
    const auto type = number<std::uint32_t>("the type of a value");
    if (type > static_cast<std::uint32_t>(GgufType::f64))
      refuse("gguf_bad_value_type",
             fmt::format("key \"{}\" is of type {}, known are 0 to 12", printable(key), type));
    return static_cast<GgufType>(type);
  }

  void check_flags(std::string_view key, const std::byte* data, std::uint64_t flags) const {
    for (std::uint64_t i = 0; i < flags; ++i)
      if (static_cast<unsigned>(data[i]) > 1)
        refuse("gguf_bad_flag", fmt::format("key \"{}\" is a flag of value {}", printable(key),
                                            static_cast<unsigned>(data[i])));
  }

  GgufValue read_array(std::string_view key) {
    GgufValue value{.type = GgufType::array};
    value.element = value_type(key);
    if (value.element == GgufType::array)
      refuse("gguf_nested_array", fmt::format("key \"{}\" is an array of arrays", printable(key)), {},
             "no published file has one, and depth without end would be none");
    value.count = number<std::uint64_t>("the length of an array");
    const std::size_t width = width_of(value.element), least = width == 0 ? 8 : width;
    if (value.count > left() / least)
      refuse("gguf_truncated", fmt::format("key \"{}\" claims {} elements, and {} bytes are left",
                                           printable(key), value.count, left()));
    value.data = file_.data() + at_;
    if (width > 0) {
      take(value.count * width, "an array");
      if (value.element == GgufType::boolean) check_flags(key, value.data, value.count);
    } else {
      for (std::uint64_t i = 0; i < value.count; ++i) text("a text of an array");
    }
    return value;
  }

  GgufValue read_value(std::string_view key) {
    GgufValue value{.type = value_type(key)};
    if (value.type == GgufType::array) return read_array(key);
    if (value.type == GgufType::text) {
      const std::string_view its = text("a text");
      value.count = its.size();
      value.data = reinterpret_cast<const std::byte*>(its.data());
      return value;
    }
    value.data = take(width_of(value.type), "a value");
    if (value.type == GgufType::boolean) check_flags(key, value.data, 1);
    return value;
  }

  void read_key() {
    const std::string_view name = text("the name of a key");
    if (name.empty() || name.size() > limits::kGgufKeyBytes || bad_utf8(name) || has_control_characters(name))
      refuse("gguf_bad_key", fmt::format("\"{}\" is no name of a key", printable(name)), {},
             "a name has 1 to 65535 bytes of UTF-8 without control characters");
    header_.keys.push_back({name, read_value(name)});
  }

  void sort_keys() {
    auto& keys = header_.keys;
    std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(keys.begin(), keys.end(),
                                          [](const auto& a, const auto& b) { return a.name == b.name; });
    if (twice != keys.end())
      refuse("gguf_duplicate_key", fmt::format("key \"{}\" is there twice", printable(twice->name)));
  }

  void read_alignment() {
    const GgufValue* value = header_.find("general.alignment");
    if (value == nullptr) return;
    if (value->type != GgufType::u32)
      refuse("gguf_bad_alignment", "general.alignment is no number of 32 bits without sign");
    alignment_ = load<std::uint32_t>(value->data);
    if (!std::has_single_bit(alignment_) || alignment_ > limits::kGgufAlignment)
      refuse("gguf_bad_alignment",
             fmt::format("general.alignment is {}, a power of two up to {} was expected", alignment_,
                         limits::kGgufAlignment));
  }

  void read_tensor() {
    GgufTensor tensor{.name = text("the name of a tensor")};
    if (tensor.name.empty() || tensor.name.size() > limits::kGgufNameBytes || bad_utf8(tensor.name) ||
        has_control_characters(tensor.name))
      refuse("gguf_bad_name", "the name of a tensor is none", tensor.name,
             fmt::format("a name has 1 to {} bytes of UTF-8 without control characters",
                         limits::kGgufNameBytes));
    const auto rank = number<std::uint32_t>("the rank of a tensor");
    if (rank < 1 || rank > limits::kGgufRank)
      refuse("gguf_bad_rank",
             fmt::format("the tensor has {} dimensions, 1 to {} were expected", rank, limits::kGgufRank),
             tensor.name);
    tensor.rank = static_cast<int>(rank);
    std::uint64_t elements = 1;
    for (std::size_t i = 0; i < rank; ++i) {
      const auto size = number<std::uint64_t>("a dimension");
      if (size == 0 || size > kMostNumber || elements > kMostNumber / size)
        refuse("gguf_bad_shape",
               fmt::format("dimension {} is {}, which makes 0 or more than 2^48 elements", i, size),
               tensor.name);
      elements *= size;
      tensor.ne[i] = static_cast<std::int64_t>(size);
    }
    size_tensor(tensor, elements);
    offsets_.push_back(number<std::uint64_t>("the offset of a tensor"));
    header_.tensors.push_back(tensor);
  }

  void size_tensor(GgufTensor& tensor, std::uint64_t elements) {
    const auto id = number<std::uint32_t>("the type of a tensor");
    tensor.type = find_ggml_type(id);
    if (tensor.type == nullptr)
      refuse("gguf_unknown_tensor_type", fmt::format("the tensor is of ggml type {}, which is not known", id),
             tensor.name, "without its size the rest of the file cannot be checked", ErrorKind::unsupported);
    if (tensor.ne[0] % tensor.type->columns != 0)
      refuse("gguf_partial_block",
             fmt::format("rows of {} elements are no whole blocks of {} ({})", tensor.ne[0],
                         tensor.type->columns, tensor.type->name),
             tensor.name);
    tensor.bytes = static_cast<std::size_t>(elements / static_cast<std::uint64_t>(tensor.type->columns) *
                                            static_cast<std::uint64_t>(tensor.type->bytes));
  }

  std::uint64_t padded(std::uint64_t bytes) const {
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
  }

  /// Sets where tensors are, and walks them in the order of the file: each starts where the one before ends.
  void place_tensors() {
    const std::uint64_t start = padded(at_);
    const std::uint64_t space = start > file_.size() ? 0 : file_.size() - start;
    std::vector<std::size_t> order(offsets_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return offsets_[a] < offsets_[b]; });
    std::uint64_t end = 0;
    for (const std::size_t i : order) {
      GgufTensor& tensor = header_.tensors[i];
      check_place(tensor, offsets_[i], end, space);
      tensor.data = file_.data() + start + offsets_[i];
      end = offsets_[i] + tensor.bytes;
    }
    if (space > padded(end)) header_.trailing = static_cast<std::size_t>(space - padded(end));
  }

  void check_place(const GgufTensor& tensor, std::uint64_t offset, std::uint64_t end,
                   std::uint64_t space) const {
    if (offset % alignment_ != 0)
      refuse("gguf_misaligned",
             fmt::format("the tensor is at offset {}, no multiple of {}", offset, alignment_), tensor.name);
    if (offset > space || tensor.bytes > space - offset)
      refuse("gguf_out_of_range",
             fmt::format("{} at offset {} takes {} bytes, and the file has {} for tensors",
                         tensor.described(), offset, tensor.bytes, space),
             tensor.name);
    if (offset < end)
      refuse("gguf_overlap",
             fmt::format("the tensor starts at offset {}, and the one before it ends at {}", offset, end),
             tensor.name);
    if (offset > padded(end))
      refuse("gguf_gap",
             fmt::format("the tensor starts at offset {}, and the one before it ends at {}", offset, end),
             tensor.name, "bytes that belong to no tensor");
  }

  void sort_tensors() {
    auto& all = header_.tensors;
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(all.begin(), all.end(),
                                          [](const auto& a, const auto& b) { return a.name == b.name; });
    if (twice != all.end()) refuse("gguf_duplicate_tensor", "two tensors have the same name", twice->name);
  }

  std::span<const std::byte> file_;
  const std::string& file_name_;
  std::size_t at_ = 0;
  std::uint64_t alignment_ = 32;
  std::vector<std::uint64_t> offsets_;  // in the order of header_.tensors before they are sorted
  GgufHeader header_;
};

}  // namespace

std::size_t width_of(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::text:
    case GgufType::array:
      break;
  }
  return 0;
}

std::string GgufTensor::described() const {
  std::string shape;
  for (int i = 0; i < rank; ++i)
    shape += fmt::format("{}{}", i == 0 ? "" : ", ", ne[static_cast<std::size_t>(i)]);
  return fmt::format("{} [{}]", type->name, shape);
}

const GgufValue* GgufHeader::find(std::string_view key) const {
  const auto at =
      std::lower_bound(keys.begin(), keys.end(), key,
                       [](const GgufKey& one, std::string_view wanted) { return one.name < wanted; });
  return at != keys.end() && at->name == key ? &at->value : nullptr;
}

GgufHeader parse_gguf(std::span<const std::byte> file, const std::string& file_name) {
  return Parser(file, file_name).parse();
}

bool is_gguf(std::span<const std::byte> file) {
  return file.size() >= sizeof(kMagic) && std::memcmp(file.data(), kMagic, sizeof(kMagic)) == 0;
}

}  // namespace sluice::checkpoint
