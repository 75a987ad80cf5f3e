// SPDX-License-Identifier: Apache-2.0
// JSON of configurations, as values. Stricter than usual: a key that stands twice is refused, not
// overwritten, and NaN or Infinity (which Python writes) is refused with the key it stands at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::checkpoint {

struct Json {
  using Member = std::pair<std::string, Json>;
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;  // sorted by key
  // An integer outside int64 becomes a double, and integer accessors refuse it.
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value = nullptr;
  std::size_t place = 0;  // of a member among those of its object, as the file has them

  /// The member `key` of an object, or null.
  const Json* find(std::string_view key) const;
  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value); }
  /// "a number", "a list", ...
  std::string_view kind() const;
};

inline constexpr int kJsonDepth = 32;

/// Throws corrupt_file naming `file_name` and the path of keys to what is wrong.
Json parse_json(std::string_view text, const std::string& file_name);

}  // namespace sluice::checkpoint
