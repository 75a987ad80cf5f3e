// SPDX-License-Identifier: Apache-2.0
// Typed, range-checked reading of a GGUF file's keys. A key of another type than is asked for is refused, not
// reinterpreted; integers of any width and sign are one type, and so are the two floats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/gguf_header.h"

namespace sluice::checkpoint {

class GgufMetadata {
 public:
  /// Views; both must outlive it.
  GgufMetadata(const GgufHeader& header, const std::string& file_name)
      : header_(&header), file_name_(&file_name) {}

  const std::string& file_name() const { return *file_name_; }
  /// The names of all keys, sorted.
  const std::vector<GgufKey>& keys() const { return header_->keys; }
  bool has(std::string_view key) const { return header_->find(key) != nullptr; }

  std::string text(std::string_view key) const;
  int integer(std::string_view key, IntRange range) const;
  int integer_or(std::string_view key, IntRange range, int absent) const;
  std::optional<bool> flag(std::string_view key) const;
  /// Finite.
  std::optional<double> number(std::string_view key) const;
  /// The number of a layer: the key holds one for all, or a list of at least `layers`.
  int integer_of_layer(std::string_view key, IntRange range, int layer, int layers) const;
  double number_of_layer(std::string_view key, int layer, int layers) const;
  /// Elements of a list, or nothing where there is none.
  std::optional<std::uint64_t> length(std::string_view key) const;

  /// Refuses the file because of this key: corrupt_file.
  [[noreturn]] void refuse(const char* code, std::string_view key, std::string why) const;

 private:
  const GgufValue& need(std::string_view key) const;
  std::int64_t integer_at(std::string_view key, GgufType type, const std::byte* at) const;
  double number_at(std::string_view key, GgufType type, const std::byte* at) const;
  int in_range(std::string_view key, std::int64_t value, IntRange range) const;
  /// The element of a list for a layer, or the value itself.
  std::pair<GgufType, const std::byte*> of_layer(std::string_view key, int layer, int layers) const;

  const GgufHeader* header_;
  const std::string* file_name_;
};

}  // namespace sluice::checkpoint
