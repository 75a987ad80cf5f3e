// SPDX-License-Identifier: Apache-2.0
// MXFP8 with E4M3 elements (OCP Microscaling 1.0): value = e4m3 * 2^(b - 127), one e8m0 byte b for 32
// columns.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/geometry.h"

namespace sluice::format {

struct Mxfp8 {
  static constexpr std::string_view name = "mxfp8";
  static constexpr Geometry geometry{
      .code_bits = 8, .group_rows = 1, .group_cols = 32, .scaled = true, .scale_bits = 8};
  static constexpr bool accepts_scales(DType dtype) { return dtype == DType::f8_e8m0 || dtype == DType::u8; }
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  /// Scale by the OCP rule, 2^(floor(log2(amax)) - 8); elements to nearest even, saturating at 448. A group
  /// of zeros gets the scale 1.
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

}  // namespace sluice::format
