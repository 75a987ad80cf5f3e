// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

/// Values of one file. A million tensors make an index of a million and one; each value takes some 100 bytes,
/// so a text of two characters a value must not be believed up to its length.
constexpr std::size_t kJsonValues = 2'000'000;

constexpr const char* kFetchAgain = "The file is damaged or was edited by hand: fetch it again";

/// Builds Json from SAX events on a stack of its own; depth is bounded, so destroying the result is too.
class Builder {
 public:
  using number_integer_t = std::int64_t;
  using number_unsigned_t = std::uint64_t;
  using number_float_t = double;
  using string_t = std::string;
  using binary_t = nlohmann::json::binary_t;

  Builder(std::string_view text, const std::string& file_name) : text_(text), file_name_(file_name) {}
  Json take() { return std::move(root_); }

  bool null() { return add({nullptr}); }
  bool boolean(bool value) { return add({value}); }
  bool number_integer(number_integer_t value) { return add({value}); }
  bool number_unsigned(number_unsigned_t value) {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return add({static_cast<double>(value)});
    return add({static_cast<std::int64_t>(value)});
  }
  bool number_float(number_float_t value, const string_t&) { return add({value}); }
  bool string(string_t& value) { return add({std::move(value)}); }
  bool binary(binary_t&) { return false; }

  bool key(string_t& value) {
    open_.back().key = std::move(value);
    return true;
  }
  bool start_object(std::size_t) { return open({Json::Object{}}); }
  bool start_array(std::size_t) { return open({Json::Array{}}); }
  bool end_array() { return close(); }

  bool end_object() {
    auto& members = std::get<Json::Object>(open_.back().json.value);
    const auto by_key = [](const Json::Member& a, const Json::Member& b) { return a.first < b.first; };
    std::sort(members.begin(), members.end(), by_key);
    const auto twice = std::adjacent_find(members.begin(), members.end(),
                                          [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != members.end()) {
      open_.back().key = twice->first;
      refuse("duplicate_key", fmt::format("\"{}\" stands twice", path()), {});
    }
    return close();
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    const std::string_view token = python_number(position);
    if (!token.empty() && !open_.empty())
      refuse("config_not_a_number", fmt::format("\"{}\" is {}, which is no number in JSON", path(), token),
             "", "Give the number, or null where there is none");
    const std::string_view what = error.what();
    const std::size_t colon = what.find(": ");
    refuse("config_not_json", fmt::format("the file is no JSON from byte {} on", position),
           printable(colon == what.npos ? what : what.substr(colon + 2)));
  }

 private:
  struct Open {
    Json json;
    std::string key = {};
  };

  [[noreturn]] void refuse(const char* code, std::string what, std::string why,
                           std::string todo = kFetchAgain) const {
    fail(ErrorKind::corrupt_file, {.code = code,
                                   .what = std::move(what),
                                   .file = file_name_,
                                   .why = std::move(why),
                                   .todo = std::move(todo)});
  }

  /// What Python writes for numbers that JSON does not have, if the lexer stopped there: it has read the
  /// first letter, and the sign before it.
  std::string_view python_number(std::size_t position) const {
    for (const std::string_view token : {"-Infinity", "Infinity", "NaN"}) {
      const std::size_t read = token.starts_with('-') ? 2 : 1;
      if (position >= read && text_.substr(position - read).starts_with(token)) return token;
    }
    return {};
  }

  /// "quantization_config.config_groups"; list positions are left out.
  std::string path() const {
    std::string keys;
    for (const Open& level : open_)
      if (!level.key.empty()) keys += (keys.empty() ? "" : ".") + printable(level.key);
    return keys;
  }

  bool open(Json json) {
    require(open_.size() < kJsonDepth, ErrorKind::corrupt_file, [&] {
      return ErrorInfo{.code = "config_too_deep",
                       .what = fmt::format("lists and objects are nested more than {} deep", kJsonDepth),
                       .file = file_name_,
                       .todo = kFetchAgain};
    });
    open_.push_back({std::move(json)});
    return true;
  }

  bool close() {
    Json done = std::move(open_.back().json);
    open_.pop_back();
    return add(std::move(done));
  }

  bool add(Json json) {
    if (++values_ > kJsonValues)
      refuse("config_too_large", fmt::format("the file holds more than {} values", kJsonValues),
             "no configuration and no index needs as many");
    if (open_.empty()) {
      root_ = std::move(json);
    } else if (auto* members = std::get_if<Json::Object>(&open_.back().json.value)) {
      json.place = members->size();
      members->emplace_back(open_.back().key, std::move(json));
    } else {
      std::get<Json::Array>(open_.back().json.value).push_back(std::move(json));
    }
    return true;
  }

  std::string_view text_;
  const std::string& file_name_;
  Json root_;
  std::vector<Open> open_;
  std::size_t values_ = 0;
};

}  // namespace

const Json* Json::find(std::string_view key) const {
  const auto* members = std::get_if<Object>(&value);
  if (members == nullptr) return nullptr;
  const auto at =
      std::lower_bound(members->begin(), members->end(), key,
                       [](const Member& member, std::string_view wanted) { return member.first < wanted; });
  return at != members->end() && at->first == key ? &at->second : nullptr;
}

std::string_view Json::kind() const {
  constexpr std::string_view kKinds[] = {"null",   "true or false", "an integer", "a number",
                                         "a text", "a list",        "an object"};
  return kKinds[value.index()];
}

Json parse_json(std::string_view text, const std::string& file_name) {
  const auto bad = bad_utf8(text);
  require(!bad, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "config_not_utf8",
                     .what = fmt::format("byte {} of the file is no UTF-8", *bad),
                     .file = file_name,
                     .todo = kFetchAgain};
  });
  Builder builder(text, file_name);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace sluice::checkpoint
