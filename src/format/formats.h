// SPDX-License-Identifier: Apache-2.0
// The list of weight formats. Each format is a file that knows its geometry, how to decode a row, and how to
// encode.
//
// A format type F has:
//   static constexpr std::string_view name;
//   static constexpr Geometry geometry;
//   /// Row `row` of `matrix` as float32, exact up to one rounding by the second scale. `out` holds
//   matrix.cols. static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
//   /// The same without any rounding.
//   static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
//   /// The types that a file may store the scales in.
//   static constexpr bool accepts_scales(DType dtype);
//   /// [rows, cols] float32 to codes and scales, by the format's own recipe (see Encoded).
//   static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
#pragma once

#include "core/choice.h"
#include "format/fp8.h"
#include "format/geometry.h"
#include "format/ggml_blocks.h"
#include "format/integers.h"
#include "format/mxfp4.h"
#include "format/mxfp8.h"
#include "format/nvfp4.h"
#include "format/plain.h"
#include "sluice/spec.h"

namespace sluice {

using Formats = List<struct FormatTag, format::F32, format::F16, format::Bf16, format::Mxfp4, format::Nvfp4,
                     format::Fp8Block128, format::Fp8Channel, format::Fp8Tensor, format::Mxfp8, format::Int2,
                     format::Int3, format::Int4, format::Int5, format::Int6, format::Int7, format::Int8,
                     format::Q4_0, format::Q8_0, format::Q4K, format::Q5K, format::Q6K>;

}  // namespace sluice
