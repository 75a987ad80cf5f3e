// SPDX-License-Identifier: Apache-2.0
// How many bytes a format takes, as data. Packing, file checks, cost estimates and benchmarks all read this,
// so that none of them can disagree about a size.
#pragma once

#include <cstdint>
#include <vector>

#include "core/choice.h"
#include "sluice/spec.h"

namespace sluice::format {

struct Geometry {
  int code_bits = 0;          // bits an element
  int group_rows = 0;         // rows that share a scale; 0: all rows
  int group_cols = 0;         // columns that share a scale; 0: all columns
  bool scaled = false;        // has a scale tensor
  int scale_bits = 0;         // bits a scale as the format defines it (a file may store a wider type)
  bool second_scale = false;  // one more float32 for the matrix
};

/// Rows and columns of the scale tensor; 0 x 0 when there is none.
struct ScaleShape {
  std::int64_t rows = 0, cols = 0;
};
ScaleShape scale_shape(const Geometry& geometry, std::int64_t rows, std::int64_t cols);

/// Bytes of codes, scales and second scale of a [rows, cols] matrix.
std::int64_t matrix_bytes(const Geometry& geometry, std::int64_t rows, std::int64_t cols);

/// A matrix with its own memory, as encode() makes it. `matrix` views the buffers and stays valid when moved.
struct Encoded {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  WeightMatrix matrix;
};

}  // namespace sluice::format

namespace sluice {

/// The geometry of any format of the list.
const format::Geometry& geometry(Format format);
/// True when scales of this type make sense for the format: u8 and f8_e8m0 are powers of two.
bool accepts_scales(Format format, DType dtype);
/// decode_row and encode of any format of the list.
void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
/// The same without any rounding: element, scale and second scale multiplied in double, where the product is
/// exact.
void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
format::Encoded encode(Format format, const float* values, std::int64_t rows, std::int64_t cols);
/// Bytes of all matrices of `experts` experts of this spec.
std::int64_t experts_bytes(const ExpertsSpec& spec, std::int64_t experts);

}  // namespace sluice
