// SPDX-License-Identifier: Apache-2.0
// FP8 E4M3 weights with coarse scales: value = e4m3 * scale. The three differ in who shares a scale. As
// float32 a value has been rounded once; with scales that are powers of two it is exact.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/geometry.h"

namespace sluice::format {

/// Scales of float32, half the width, or powers of two (DeepSeek-V4's "ue8m0").
struct Fp8 {
  static constexpr bool accepts_scales(DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f8_e8m0 ||
           dtype == DType::u8;
  }
};

/// A scale for a tile of 128 x 128; the last tiles may be smaller (DeepSeek-V3, Qwen3-FP8, ...).
struct Fp8Block128 : Fp8 {
  static constexpr std::string_view name = "fp8_block128";
  static constexpr Geometry geometry{
      .code_bits = 8, .group_rows = 128, .group_cols = 128, .scaled = true, .scale_bits = 32};
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  /// scale = amax / 448 in float32, 1 for zeros; elements to nearest even.
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

/// A scale for a row.
struct Fp8Channel : Fp8 {
  static constexpr std::string_view name = "fp8_channel";
  static constexpr Geometry geometry{.code_bits = 8, .group_rows = 1, .scaled = true, .scale_bits = 32};
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

/// One scale for the matrix.
struct Fp8Tensor : Fp8 {
  static constexpr std::string_view name = "fp8_tensor";
  static constexpr Geometry geometry{.code_bits = 8, .scaled = true, .scale_bits = 32};
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

}  // namespace sluice::format
