// SPDX-License-Identifier: Apache-2.0
#include "format/geometry.h"

namespace sluice::format {
namespace {

/// Groups of `group` that cover `size`; a group of 0 is everything.
std::int64_t groups(std::int64_t size, std::int64_t group) {
  return group == 0 ? 1 : (size + group - 1) / group;
}

}  // namespace

ScaleShape scale_shape(const Geometry& geometry, std::int64_t rows, std::int64_t cols) {
  if (!geometry.scaled) return {};
  return {groups(rows, geometry.group_rows), groups(cols, geometry.group_cols)};
}

std::int64_t line_bytes(const Geometry& geometry, std::int64_t integers) {
  if (geometry.block_cols > 0) return groups(integers, geometry.block_cols) * geometry.block_bytes;
  const std::int64_t unit = geometry.line_bits;
  return (integers * geometry.code_bits + unit - 1) / unit * unit / 8;
}

std::int64_t matrix_bytes(const Geometry& geometry, std::int64_t rows, std::int64_t cols) {
  const ScaleShape scales = scale_shape(geometry, rows, cols);
  const std::int64_t second = geometry.second_scale ? 4 : 0;
  const std::int64_t zeros = geometry.zero_points ? scales.cols * line_bytes(geometry, rows) : 0;
  const std::int64_t order = geometry.act_order ? 4 * cols : 0;
  return rows * line_bytes(geometry, cols) + scales.rows * scales.cols * geometry.scale_bits / 8 + second +
         zeros + order;
}

}  // namespace sluice::format
