// SPDX-License-Identifier: Apache-2.0
// What repacking reads a strip from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/bits.h"
#include "experts/cuda/common/layout.h"
#include "format/fp4_blocks.h"
#include "sluice/spec.h"

namespace sluice::cuda {

/// A row of a strip; no matrix for one of the padding.
struct Row {
  const WeightMatrix* matrix = nullptr;
  std::int64_t row = 0;

  explicit operator bool() const { return matrix != nullptr; }
  /// Of a column, where `group_cols` share a scale.
  std::uint8_t scale_byte(int group_cols, std::int64_t column) const {
    return load<std::uint8_t>(format::fp4_scale(*matrix, group_cols, row, column / group_cols));
  }
};

using Strip = std::array<Row, kStripRows>;

/// The values of a block as the file has them: codes of 4, 8 or 16 bits.
using Codes = std::array<std::array<std::uint16_t, kBlockColumns>, kStripRows>;

}  // namespace sluice::cuda
