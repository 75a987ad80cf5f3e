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
  int line_bits = 8;          // a row of codes is whole units of so many bits
  bool integers = false;      // columns that share a scale and what follows are the matrix's own (Grouping)
  bool zero_points = false;   // an integer for every scale, packed in words along the rows
  bool act_order = false;     // an int32 for every column
  int block_cols = 0;         // GGUF: columns of a row in a block that holds scales and codes; 0: no blocks
  int block_bytes = 0;
};

/// Rows and columns of the scale tensor; 0 x 0 when there is none.
struct ScaleShape {
  std::int64_t rows = 0, cols = 0;
};
ScaleShape scale_shape(const Geometry& geometry, std::int64_t rows, std::int64_t cols);

/// Bytes of a line of so many codes or zero points.
std::int64_t line_bytes(const Geometry& geometry, std::int64_t integers);

/// Bytes of codes, scales, second scale, zero points and column order of a [rows, cols] matrix.
std::int64_t matrix_bytes(const Geometry& geometry, std::int64_t rows, std::int64_t cols);

/// A matrix with its own memory, as encode() makes it. `matrix` views the buffers and stays valid when moved.
struct Encoded {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  WeightMatrix matrix;
  std::vector<std::byte> zeros = {};          // integer formats with zero points
  std::vector<std::byte> column_groups = {};  // integer formats with act-order
};

}  // namespace sluice::format

namespace sluice {

/// The geometry of any format of the list; of an integer format without zero points, a scale a row.
const format::Geometry& geometry(Format format);
/// The geometry of a format with that grouping, which only integer formats heed.
format::Geometry geometry(Format format, const Grouping& grouping);
/// The geometry of a matrix.
format::Geometry geometry(const WeightMatrix& matrix);
/// True for "int2" to "int8".
bool is_integer(Format format);
/// True for GGUF's own formats, "q4_0" and so on.
bool is_ggml_block(Format format);
/// True when scales of this type make sense for the format: u8 and f8_e8m0 are powers of two.
bool accepts_scales(Format format, DType dtype);
/// decode_row and encode of any format of the list.
void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
/// The same without any rounding: element, scale and second scale multiplied in double, where the product is
/// exact.
void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
format::Encoded encode(Format format, const float* values, std::int64_t rows, std::int64_t cols);
/// The same for an integer format in that grouping, rows packed densely; format/integers.h has other layouts.
format::Encoded encode(Format format, const Grouping& grouping, const float* values, std::int64_t rows,
                       std::int64_t cols);
/// Bytes of all matrices of `experts` experts of this spec.
std::int64_t experts_bytes(const ExpertsSpec& spec, std::int64_t experts);

}  // namespace sluice
