// SPDX-License-Identifier: Apache-2.0
// NVFP4: value = (e2m1 * scale) * second_scale, one e4m3 scale for 16 columns of a row and one float32 for
// the matrix. The product in brackets is exact in float32 (2 and 4 bits of mantissa), so a float32 value has
// been rounded once.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/geometry.h"

namespace sluice::format {

struct Nvfp4 {
  static constexpr std::string_view name = "nvfp4";
  static constexpr Geometry geometry{.code_bits = 4,
                                     .group_rows = 1,
                                     .group_cols = 16,
                                     .scaled = true,
                                     .scale_bits = 8,
                                     .second_scale = true};
  static constexpr bool accepts_scales(DType dtype) { return dtype == DType::f8_e4m3; }
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  /// Without the second scale: exact.
  static void decode_row_unscaled(const WeightMatrix& matrix, std::int64_t row, float* out);
  /// The recipe of NVIDIA ModelOpt: second_scale = amax / (6 * 448), scale = amax of the group / (6 *
  /// second_scale) in e4m3, at least the smallest one; elements to nearest even. A matrix of zeros gets the
  /// scales 1.
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

}  // namespace sluice::format
