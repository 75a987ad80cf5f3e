// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_metadata.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "checkpoint/text.h"
#include "core/bits.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr const char* kTypeNames[] = {"u8",   "i8",   "u16",   "i16", "u32", "i32", "f32",
                                      "flag", "text", "array", "u64", "i64", "f64"};

const char* name_of(GgufType type) { return kTypeNames[static_cast<std::size_t>(type)]; }

}  // namespace

void GgufMetadata::refuse(const char* code, std::string_view key, std::string why) const {
  fail(ErrorKind::corrupt_file,
       {.code = code,
        .what = fmt::format("the key {} is not what the model needs", printable(key)),
        .file = *file_name_,
        .why = std::move(why),
        .todo = "Fetch the file again, or one that a newer version of llama.cpp wrote"});
}

const GgufValue& GgufMetadata::need(std::string_view key) const {
  const GgufValue* value = header_->find(key);
  if (value == nullptr) refuse("gguf_missing_key", key, "it is not there, and nothing stands in for it");
  return *value;
}

std::int64_t GgufMetadata::integer_at(std::string_view key, GgufType type, const std::byte* at) const {
  switch (type) {
    case GgufType::u8:
      return load<std::uint8_t>(at);
    case GgufType::i8:
      return load<std::int8_t>(at);
    case GgufType::u16:
      return load<std::uint16_t>(at);
    case GgufType::i16:
      return load<std::int16_t>(at);
    case GgufType::u32:
      return load<std::uint32_t>(at);
    case GgufType::i32:
      return load<std::int32_t>(at);
    case GgufType::i64:
      return load<std::int64_t>(at);
    case GgufType::u64:
      if (const auto value = load<std::uint64_t>(at); value <= std::numeric_limits<std::int64_t>::max())
        return static_cast<std::int64_t>(value);
      refuse("gguf_key_out_of_range", key, "it is beyond 2^63");
    default:
      refuse("gguf_wrong_key_type", key, fmt::format("it is {}, an integer was expected", name_of(type)));
  }
}

double GgufMetadata::number_at(std::string_view key, GgufType type, const std::byte* at) const {
  if (type != GgufType::f32 && type != GgufType::f64)
    refuse("gguf_wrong_key_type", key, fmt::format("it is {}, f32 was expected", name_of(type)));
  const double value = type == GgufType::f32 ? double{load<float>(at)} : load<double>(at);
  if (!std::isfinite(value)) refuse("gguf_key_out_of_range", key, fmt::format("it is {}", value));
  return value;
}

int GgufMetadata::in_range(std::string_view key, std::int64_t value, IntRange range) const {
  if (value < range.first || value > range.last)
    refuse("gguf_key_out_of_range", key,
           fmt::format("it is {}, {} to {} were expected", value, range.first, range.last));
  return static_cast<int>(value);
}

std::string GgufMetadata::text(std::string_view key) const {
  const GgufValue& value = need(key);
  if (value.type != GgufType::text)
    refuse("gguf_wrong_key_type", key, fmt::format("it is {}, a text was expected", name_of(value.type)));
  return {reinterpret_cast<const char*>(value.data), static_cast<std::size_t>(value.count)};
}

int GgufMetadata::integer(std::string_view key, IntRange range) const {
  const GgufValue& value = need(key);
  return in_range(key, integer_at(key, value.type, value.data), range);
}

int GgufMetadata::integer_or(std::string_view key, IntRange range, int absent) const {
  return has(key) ? integer(key, range) : absent;
}

std::optional<bool> GgufMetadata::flag(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  const GgufValue& value = need(key);
  if (value.type != GgufType::boolean)
    refuse("gguf_wrong_key_type", key, fmt::format("it is {}, a flag was expected", name_of(value.type)));
  return value.data[0] != std::byte{0};
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  const GgufValue& value = need(key);
  return number_at(key, value.type, value.data);
}

std::pair<GgufType, const std::byte*> GgufMetadata::of_layer(std::string_view key, int layer,
                                                             int layers) const {
  const GgufValue& value = need(key);
  if (value.type != GgufType::array) return {value.type, value.data};
  if (value.element == GgufType::text)
    refuse("gguf_wrong_key_type", key, "it is a list of texts, numbers were expected");
  if (value.count < static_cast<std::uint64_t>(layers))
    refuse("short_layer_list", key,
           fmt::format("it has {} entries, the model has {} layers", value.count, layers));
  return {value.element, value.data + static_cast<std::ptrdiff_t>(width_of(value.element)) * layer};
}

int GgufMetadata::integer_of_layer(std::string_view key, IntRange range, int layer, int layers) const {
  const auto [type, at] = of_layer(key, layer, layers);
  return in_range(key, integer_at(key, type, at), range);
}

double GgufMetadata::number_of_layer(std::string_view key, int layer, int layers) const {
  const auto [type, at] = of_layer(key, layer, layers);
  return number_at(key, type, at);
}

std::optional<std::uint64_t> GgufMetadata::length(std::string_view key) const {
  const GgufValue* value = header_->find(key);
  if (value == nullptr || value->type != GgufType::array) return std::nullopt;
  return value->count;
}

}  // namespace sluice::checkpoint
