// SPDX-License-Identifier: Apache-2.0
// Weights that are plain numbers: f32, f16, bf16. No scales.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/geometry.h"

namespace sluice::format {

/// The part that does not depend on the element type.
struct Plain {
  static constexpr bool accepts_scales(DType) { return false; }
};

struct F32 : Plain {
  static constexpr std::string_view name = "f32";
  static constexpr Geometry geometry{.code_bits = 32};
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

struct F16 : Plain {
  static constexpr std::string_view name = "f16";
  static constexpr Geometry geometry{.code_bits = 16};
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

struct Bf16 : Plain {
  static constexpr std::string_view name = "bf16";
  static constexpr Geometry geometry{.code_bits = 16};
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

}  // namespace sluice::format
