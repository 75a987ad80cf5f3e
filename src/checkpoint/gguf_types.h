// SPDX-License-Identifier: Apache-2.0
// The tensor types of ggml by their numbers: how many columns are a block of how many bytes. Sizes of all
// known types, because a file is checked whole; a format only for those that experts are read in.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sluice/spec.h"

namespace sluice::checkpoint {

struct GgmlType {
  std::uint32_t id = 0;
  std::string_view name;
  int columns = 0;  // of a block
  int bytes = 0;    // of a block
};

/// Null for numbers that no version of ggml still writes, or that are newer than this list.
const GgmlType* find_ggml_type(std::uint32_t id);

/// The format of weights stored as this type, if weights are read from it.
std::optional<Format> format_of(const GgmlType& type);

namespace ggml {
inline constexpr std::uint32_t kF32 = 0, kF16 = 1, kI32 = 26, kBf16 = 30, kMxfp4 = 39, kNvfp4 = 40;
}  // namespace ggml

}  // namespace sluice::checkpoint
