// SPDX-License-Identifier: Apache-2.0
// 4-bit floats in the two orders that files have: neighbours in a byte with scales apart (safetensors), or
// GGUF's blocks of scales and codes (BlockLayout). This is the one place that knows where a code and a scale
// of either lie; the values are the same.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "format/decoding.h"
#include "sluice/spec.h"

namespace sluice::format {

/// MXFP4: a scale, 16 bytes of codes. NVFP4: four scales, 32 bytes of codes.
inline constexpr BlockLayout kMxfp4Block{.columns = 32, .bytes = 17};
inline constexpr BlockLayout kNvfp4Block{.columns = 64, .bytes = 36};

/// True when the matrix is in no blocks, or in those of its format.
bool blocks_are_known(const WeightMatrix& matrix);

/// Where the scale of group `group` of a row is. `group_cols` is the format's.
inline const std::byte* fp4_scale(const WeightMatrix& matrix, int group_cols, std::int64_t row,
                                  std::int64_t group) {
  const std::byte* line = matrix.scales.data + row * matrix.scales.row_stride;
  if (matrix.blocks.columns == 0) return line + group * matrix.scales.col_stride;
  const std::int64_t each = matrix.blocks.columns / group_cols;
  return line + group / each * matrix.blocks.bytes + group % each * matrix.scales.col_stride;
}

/// The byte of a row in blocks that has the code of a column, in its high nibble from the second half of the
/// group on.
inline const std::byte* codes_in_blocks(const WeightMatrix& matrix, int group_cols, std::int64_t row,
                                        std::int64_t column) {
  const int block = matrix.blocks.columns, half = group_cols / 2;
  const auto in_block = static_cast<int>(column % block);
  return matrix.codes + row * matrix.row_stride + column / block * matrix.blocks.bytes +
         in_block / group_cols * half + in_block % half;
}

/// The code of one column of a row, in blocks or not.
inline std::uint8_t fp4_code(const WeightMatrix& matrix, int group_cols, std::int64_t row,
                             std::int64_t column) {
  const bool neighbours = matrix.blocks.columns == 0;
  const std::byte* at = neighbours ? matrix.codes + row * matrix.row_stride + column / 2
                                   : codes_in_blocks(matrix, group_cols, row, column);
  const bool high = neighbours ? column % 2 != 0 : column % group_cols >= group_cols / 2;
  return static_cast<std::uint8_t>(load<std::uint8_t>(at) >> (high ? 4 : 0) & 15u);
}

/// The codes of columns `column` to `column` + 7 of a row in blocks, column + i in bits 4i. `column` is a
/// multiple of 8, and half a group is a multiple of 8 columns.
inline std::uint32_t eight_codes_in_blocks(const WeightMatrix& matrix, int group_cols, std::int64_t row,
                                           std::int64_t column) {
  const bool high = column % group_cols >= group_cols / 2;
  const std::uint64_t nibbles =
      load<std::uint64_t>(codes_in_blocks(matrix, group_cols, row, column)) >> (high ? 4 : 0) &
      0x0F0F0F0F0F0F0F0Fu;
  std::uint64_t pairs = (nibbles | nibbles >> 4) & 0x00FF00FF00FF00FFu;
  pairs = (pairs | pairs >> 8) & 0x0000FFFF0000FFFFu;
  return static_cast<std::uint32_t>(pairs | pairs >> 16);
}

/// Row `row` of a format of E2M1 elements as element times scale, without the second scale: exact.
template <class F, class Real>
void decode_fp4(const WeightMatrix& matrix, std::int64_t row, Real* out) {
  if (matrix.blocks.columns == 0) return decode_scaled<F>(matrix, row, E2m1Element{}, out);
  constexpr int kGroup = F::geometry.group_cols;
  for (std::int64_t first = 0, group = 0; first < matrix.cols; first += kGroup, ++group) {
    const Real scale = read_number(matrix.scales.dtype, fp4_scale(matrix, kGroup, row, group));
    for (int c = 0; c < kGroup; c += 8) {
      const std::uint32_t codes = eight_codes_in_blocks(matrix, kGroup, row, first + c);
      for (int i = 0; i < 8; ++i) out[first + c + i] = static_cast<Real>(kE2m1[codes >> 4 * i & 15u]) * scale;
    }
  }
}

}  // namespace sluice::format
