// SPDX-License-Identifier: Apache-2.0
// Typed, range-checked reading of config.json. Every refusal names the file, the key with its path, what was
// found and what would do.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/json.h"

namespace sluice::checkpoint {

/// A closed range of integers.
struct IntRange {
  std::int64_t first = 0, last = 0;
};

namespace limits {
inline constexpr IntRange kLayers{1, 10'000};
inline constexpr IntRange kWidth{1, 1'000'000};  // hidden, intermediate
inline constexpr IntRange kExperts{1, 65'536};
inline constexpr IntRange kVocabulary{1, 100'000'000};
}  // namespace limits

/// One object of a configuration. A view: the Json and the file's name must outlive it. A key whose value is
/// null counts as absent.
class Config {
 public:
  Config(const Json& object, const std::string& file_name, std::string path = {});

  const std::string& file_name() const { return *file_name_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// In order.
  std::vector<std::string> keys() const;
  /// As the file has them, where the first or the last of several counts.
  std::vector<std::string> keys_as_written() const;
  /// Keys whose value is null.
  std::vector<std::string> nulls() const;

  int integer(std::string_view key, IntRange range) const;
  int integer_or(std::string_view key, IntRange range, int absent) const;
  /// Finite and within [least, infinity).
  double number_or(std::string_view key, double least, double absent) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view absent) const;
  /// A text, "true" or "false" for a flag, or nothing where the key is absent.
  std::string text_or_flag(std::string_view key) const;
  bool flag_or(std::string_view key, bool absent) const;
  std::vector<std::int64_t> integers_or_empty(std::string_view key, IntRange range) const;
  std::vector<std::string> texts_or_empty(std::string_view key) const;
  /// true and false, or 1 and 0.
  std::vector<bool> flags_or_empty(std::string_view key) const;
  bool is_text(std::string_view key) const;
  bool is_list(std::string_view key) const;
  std::optional<Config> object(std::string_view key) const;
  /// The objects of an object, as the file has them.
  std::vector<Config> objects(std::string_view key) const;

  /// A limit for each of `layers` layers, from a number or a list of at least that many. Zero, null and
  /// absent mean "no limit", which is infinity. Negative numbers are refused: engines disagree on them.
  std::vector<float> limits(std::string_view key, int layers) const;

  /// "quantization_config.quant_method"
  std::string path_of(std::string_view key) const;
  /// Refuses the value of `key`: corrupt_file, "<path> is <found>" and why.
  [[noreturn]] void refuse(const char* code, std::string_view key, std::string_view why,
                           std::string todo = {}) const;
  /// Refuses as "unknown_quantisation" unless the key is absent, null, an empty list or an empty object.
  void need_nothing(std::string_view key, std::string_view why) const;

 private:
  const Json* find(std::string_view key) const;
  const Json& need(std::string_view key) const;
  int checked_integer(std::string_view key, const Json& value, IntRange range) const;
  float limit(std::string_view key, const Json& value) const;
  [[noreturn]] void wrong_type(std::string_view key, const Json& value, std::string_view wanted) const;

  const Json* object_;
  const std::string* file_name_;
  std::string path_;  // "" or "quantization_config."
};

}  // namespace sluice::checkpoint
