// SPDX-License-Identifier: Apache-2.0
// MXFP4 (OCP Microscaling 1.0): value = e2m1 * 2^(b - 127), one e8m0 byte b for 32 columns of a row.
// Exact in float32, but for 2^127 times more than 1.5, which is infinity there.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/geometry.h"

namespace sluice::format {

struct Mxfp4 {
  static constexpr std::string_view name = "mxfp4";
  static constexpr Geometry geometry{
      .code_bits = 4, .group_rows = 1, .group_cols = 32, .scaled = true, .scale_bits = 8};
  static constexpr bool accepts_scales(DType dtype) { return dtype == DType::f8_e8m0 || dtype == DType::u8; }
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  /// Scale by the OCP rule, 2^(floor(log2(amax)) - 2); elements to nearest even, saturating at 6. A group of
  /// zeros gets the scale 1.
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

}  // namespace sluice::format
