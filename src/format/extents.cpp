// SPDX-License-Identifier: Apache-2.0
#include "format/extents.h"

#include <algorithm>

#include "format/geometry.h"
#include "format/integers.h"

namespace sluice::format {
namespace {

/// One direction of a grid.
struct Steps {
  std::int64_t count = 0;
  std::ptrdiff_t stride = 0;
};

std::ptrdiff_t length(const Steps& steps) {
  return (steps.count - 1) * (steps.stride < 0 ? -steps.stride : steps.stride);
}

/// Elements of `bytes` bytes. Lines go along the direction whose steps are smaller; those that follow each
/// other without a gap are one.
Extent grid(const std::byte* data, Steps along, Steps across, std::size_t bytes) {
  if (length(along) > length(across) && across.count > 1) std::swap(along, across);
  Extent extent{.data = along.stride < 0 ? data - length(along) : data,
                .lines = across.count,
                .stride = across.stride,
                .line_bytes = static_cast<std::size_t>(length(along)) + bytes};
  if (extent.stride == static_cast<std::ptrdiff_t>(extent.line_bytes)) {
    extent.line_bytes *= static_cast<std::size_t>(extent.lines);
    extent.lines = 1;
  }
  return extent;
}

Extent words(const std::byte* data, const PackedGrid& grid_of, int bits, Steps along_row,
             Steps along_column) {
  const bool rows = grid_of.along == PackedGrid::Along::row;
  const std::int64_t lines = rows ? along_column.count : along_row.count;
  const std::int64_t integers = rows ? along_row.count : along_column.count;
  return grid(data, {words_of_line(grid_of.packing, bits, integers), grid_of.word_stride},
              {lines, grid_of.line_stride}, sizeof(std::uint32_t));
}

Extent codes_of(const WeightMatrix& matrix) {
  const Geometry& shape = geometry(matrix.format);
  if (is_integer(matrix.format))
    return words(matrix.codes, matrix.integers.codes, shape.code_bits, {matrix.cols}, {matrix.rows});
  const Steps rows{matrix.rows, matrix.row_stride};
  const auto lines = [&](const std::byte* data, std::int64_t line_bytes) {
    return grid(data, {1}, rows, static_cast<std::size_t>(line_bytes));
  };
  if (is_ggml_block(matrix.format))
    return lines(matrix.codes, (matrix.cols + shape.block_cols - 1) / shape.block_cols * shape.block_bytes);
  // Blocks begin with their scales.
  if (matrix.blocks.columns != 0)
    return lines(std::min(matrix.codes, matrix.scales.data),
                 matrix.cols / matrix.blocks.columns * matrix.blocks.bytes);
  if (shape.code_bits < 8) return lines(matrix.codes, (matrix.cols * shape.code_bits + 7) / 8);
  return grid(matrix.codes, {matrix.cols, matrix.col_stride}, rows,
              static_cast<std::size_t>(shape.code_bits / 8));
}

Extent vector_of(const VectorView& vector) {
  return grid(vector.data, {vector.size, vector.stride}, {1, 0},
              static_cast<std::size_t>(bits(vector.dtype) / 8));
}

}  // namespace

std::vector<Extent> extents_of(const WeightMatrix& matrix) {
  std::vector<Extent> extents = {codes_of(matrix)};
  const Geometry shape = geometry(matrix);
  if (shape.scaled && matrix.blocks.columns == 0 && !is_ggml_block(matrix.format)) {
    const ScaleShape scales = scale_shape(shape, matrix.rows, matrix.cols);
    extents.push_back(grid(matrix.scales.data, {scales.cols, matrix.scales.col_stride},
                           {scales.rows, matrix.scales.row_stride},
                           static_cast<std::size_t>(bits(matrix.scales.dtype) / 8)));
  }
  const IntegerParts& parts = matrix.integers;
  if (parts.zeros != nullptr)
    extents.push_back(
        words(parts.zeros, parts.zeros_grid, integer_bits(matrix), {groups_of_row(matrix)}, {matrix.rows}));
  if (parts.column_groups != nullptr)
    extents.push_back(
        {parts.column_groups, 1, 0, static_cast<std::size_t>(matrix.cols) * sizeof(std::int32_t)});
  return extents;
}

std::vector<Extent> extents_of(const ExpertWeights& expert) {
  std::vector<Extent> all;
  const auto add = [&](const WeightMatrix& matrix) {
    const std::vector<Extent> its = extents_of(matrix);
    all.insert(all.end(), its.begin(), its.end());
  };
  if (expert.gate) add(*expert.gate);
  add(expert.up);
  add(expert.down);
  for (const VectorView& bias : {expert.gate_bias, expert.up_bias, expert.down_bias})
    if (bias) all.push_back(vector_of(bias));
  return all;
}

}  // namespace sluice::format
