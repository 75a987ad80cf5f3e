// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

/// A value as a message shows it.
std::string shown(const Json& json) {
  if (const auto* text = std::get_if<std::string>(&json.value))
    return fmt::format("\"{}\"", printable(*text));
  if (const auto* number = std::get_if<std::int64_t>(&json.value)) return fmt::format("{}", *number);
  if (const auto* number = std::get_if<double>(&json.value)) return fmt::format("{}", *number);
  if (const auto* flag = std::get_if<bool>(&json.value)) return *flag ? "true" : "false";
  return std::string(json.kind());
}

std::optional<double> as_double(const Json& json) {
  if (const auto* number = std::get_if<std::int64_t>(&json.value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<double>(&json.value)) return *number;
  return std::nullopt;
}

constexpr const char* kFetchAgain =
    "Fetch config.json again; it must belong to the same model as the weights";

/// What to do about a value when the caller knows nothing better.
std::string advice(std::string_view code) {
  return code.starts_with("unknown_")
             ? "If the model is right, its family or scheme needs code: docs/adding says how"
             : kFetchAgain;
}

}  // namespace

Config::Config(const Json& object, const std::string& file_name, std::string path)
    : object_(&object), file_name_(&file_name), path_(std::move(path)) {
  require(std::holds_alternative<Json::Object>(object.value), ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "config_wrong_type",
                     .what = fmt::format("{} is {}, an object was expected",
                                         path_.empty() ? "the whole file" : path_.substr(0, path_.size() - 1),
                                         object.kind()),
                     .file = file_name,
                     .todo = kFetchAgain};
  });
}

std::string Config::path_of(std::string_view key) const { return path_ + printable(key); }

void Config::refuse(const char* code, std::string_view key, std::string_view why, std::string todo) const {
  const Json* value = find(key);
  fail(ErrorKind::corrupt_file,
       {.code = code,
        .what = fmt::format("{} is {}", path_of(key), value == nullptr ? "absent" : shown(*value)),
        .file = *file_name_,
        .why = std::string(why),
        .todo = todo.empty() ? advice(code) : std::move(todo)});
}

void Config::wrong_type(std::string_view key, const Json& value, std::string_view wanted) const {
  fail(ErrorKind::corrupt_file,
       {.code = "config_wrong_type",
        .what = shown(value) == value.kind()
                    ? fmt::format("{} is {} where {} belongs", path_of(key), value.kind(), wanted)
                    : fmt::format("{} is {}, {}, where {} belongs", path_of(key), shown(value), value.kind(),
                                  wanted),
        .file = *file_name_,
        .todo = kFetchAgain});
}

const Json* Config::find(std::string_view key) const {
  const Json* value = object_->find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json& Config::need(std::string_view key) const {
  const Json* value = find(key);
  require(value != nullptr, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "config_missing_key",
                     .what = fmt::format("there is no {}", path_of(key)),
                     .file = *file_name_,
                     .todo = kFetchAgain};
  });
  return *value;
}

std::vector<std::string> Config::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : std::get<Json::Object>(object_->value))
    if (!value.is_null()) keys.push_back(key);
  return keys;
}

std::vector<std::string> Config::keys_as_written() const {
  std::vector<std::pair<std::size_t, std::string>> places;
  for (const auto& [key, value] : std::get<Json::Object>(object_->value))
    if (!value.is_null()) places.emplace_back(value.place, key);
  std::sort(places.begin(), places.end());
  std::vector<std::string> keys;
  for (auto& [place, key] : places) keys.push_back(std::move(key));
  return keys;
}

std::vector<std::string> Config::nulls() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : std::get<Json::Object>(object_->value))
    if (value.is_null()) keys.push_back(key);
  return keys;
}

void Config::need_nothing(std::string_view key, std::string_view why) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  const auto* list = std::get_if<Json::Array>(&value->value);
  const auto* members = std::get_if<Json::Object>(&value->value);
  if ((list != nullptr && list->empty()) || (members != nullptr && members->empty())) return;
  refuse("unknown_quantisation", key, why);
}

int Config::checked_integer(std::string_view key, const Json& value, IntRange range) const {
  const auto* number = std::get_if<std::int64_t>(&value.value);
  if (number == nullptr) wrong_type(key, value, "an integer");
  require(*number >= range.first && *number <= range.last, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "config_out_of_range",
                     .what = fmt::format("{} is {}, it must lie between {} and {}", path_of(key), *number,
                                         range.first, range.last),
                     .file = *file_name_,
                     .todo = kFetchAgain};
  });
  return static_cast<int>(*number);
}

int Config::integer(std::string_view key, IntRange range) const {
  return checked_integer(key, need(key), range);
}

int Config::integer_or(std::string_view key, IntRange range, int absent) const {
  return has(key) ? integer(key, range) : absent;
}

double Config::number_or(std::string_view key, double least, double absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  const auto number = as_double(*value);
  if (!number) wrong_type(key, *value, "a number");
  require(std::isfinite(static_cast<float>(*number)) && *number >= least, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{
        .code = "config_out_of_range",
        .what = fmt::format("{} is {}, it must be a float32 of at least {}", path_of(key), *number, least),
        .file = *file_name_,
        .todo = kFetchAgain};
  });
  return *number;
}

std::string Config::text(std::string_view key) const {
  const Json& value = need(key);
  const auto* text = std::get_if<std::string>(&value.value);
  if (text == nullptr) wrong_type(key, value, "a text");
  return *text;
}

std::string Config::text_or(std::string_view key, std::string_view absent) const {
  return has(key) ? text(key) : std::string(absent);
}

std::string Config::text_or_flag(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const auto* flag = std::get_if<bool>(&value->value);
  return flag == nullptr ? text(key) : *flag ? "true" : "false";
}

bool Config::flag_or(std::string_view key, bool absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  const auto* flag = std::get_if<bool>(&value->value);
  if (flag == nullptr) wrong_type(key, *value, "true or false");
  return *flag;
}

std::vector<std::int64_t> Config::integers_or_empty(std::string_view key, IntRange range) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const auto* list = std::get_if<Json::Array>(&value->value);
  if (list == nullptr) wrong_type(key, *value, "a list of integers");
  std::vector<std::int64_t> numbers;
  for (const Json& item : *list) numbers.push_back(checked_integer(key, item, range));
  return numbers;
}

std::vector<std::string> Config::texts_or_empty(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const auto* list = std::get_if<Json::Array>(&value->value);
  if (list == nullptr) wrong_type(key, *value, "a list of texts");
  std::vector<std::string> texts;
  for (const Json& item : *list) {
    const auto* text = std::get_if<std::string>(&item.value);
    if (text == nullptr) wrong_type(key, item, "a text");
    texts.push_back(*text);
  }
  return texts;
}

std::vector<bool> Config::flags_or_empty(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const auto* list = std::get_if<Json::Array>(&value->value);
  if (list == nullptr) wrong_type(key, *value, "a list of true and false");
  std::vector<bool> flags;
  for (const Json& item : *list) {
    const auto* flag = std::get_if<bool>(&item.value);
    flags.push_back(flag != nullptr ? *flag : checked_integer(key, item, {0, 1}) == 1);
  }
  return flags;
}

bool Config::is_text(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && std::holds_alternative<std::string>(value->value);
}

bool Config::is_list(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && std::holds_alternative<Json::Array>(value->value);
}

std::optional<Config> Config::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return Config(*value, *file_name_, path_of(key) + ".");
}

std::vector<Config> Config::objects(std::string_view key) const {
  std::vector<Config> objects;
  const auto outer = object(key);
  if (!outer) return objects;
  for (const std::string& name : outer->keys_as_written()) objects.push_back(*outer->object(name));
  return objects;
}

float Config::limit(std::string_view key, const Json& value) const {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  if (value.is_null()) return kNone;
  const auto number = as_double(value);
  if (!number) wrong_type(key, value, "a number");
  const auto limit = static_cast<float>(*number);
  const bool vanishes = limit == 0 && *number != 0;
  require(limit >= 0 && std::isfinite(limit) && !vanishes, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "bad_limit",
                     .what = fmt::format("{} is {}, a limit is a positive number", path_of(key), *number),
                     .file = *file_name_,
                     .todo = "Give the limit, or null where there is none"};
  });
  return limit == 0 ? kNone : limit;
}

std::vector<float> Config::limits(std::string_view key, int layers) const {
  const auto count = static_cast<std::size_t>(layers);
  const Json* value = find(key);
  if (value == nullptr) return std::vector<float>(count, std::numeric_limits<float>::infinity());
  const auto* list = std::get_if<Json::Array>(&value->value);
  if (list == nullptr) return std::vector<float>(count, limit(key, *value));
  require(list->size() >= count, ErrorKind::corrupt_file, [&] {
    return ErrorInfo{
        .code = "short_layer_list",
        .what = fmt::format("{} has {} entries, the model has {} layers", path_of(key), list->size(), layers),
        .file = *file_name_,
        .todo = "Give one entry a layer, null where there is no limit"};
  });
  std::vector<float> limits;
  for (std::size_t i = 0; i < count; ++i) limits.push_back(limit(key, (*list)[i]));
  return limits;
}

}  // namespace sluice::checkpoint
