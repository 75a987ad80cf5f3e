// SPDX-License-Identifier: Apache-2.0
// Reading the numbers beside the codes: scales, biases, plain elements. A file may store them in several
// types.
#pragma once

#include <cstdint>

#include "sluice/spec.h"
#include "sluice/tensor.h"

namespace sluice::format {

/// True for the types that read_number reads: f32, f16, bf16, f8_e4m3, f8_e8m0, and u8, which is e8m0 in
/// disguise.
bool is_number(DType dtype);

/// The number of type `dtype` at `at`, exactly. `at` need not be aligned. Throws invalid_argument for other
/// types.
float read_number(DType dtype, const std::byte* at);

/// Scale (i, j) of a matrix: row group i, column group j.
inline float scale_at(const ScalesView& scales, std::int64_t i, std::int64_t j) {
  return read_number(scales.dtype, scales.data + i * scales.row_stride + j * scales.col_stride);
}

}  // namespace sluice::format
