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

std::int64_t matrix_bytes(const Geometry& geometry, std::int64_t rows, std::int64_t cols) {
  const std::int64_t row_bytes = (cols * geometry.code_bits + 7) / 8;
  const ScaleShape scales = scale_shape(geometry, rows, cols);
  const std::int64_t second = geometry.second_scale ? 4 : 0;
  return rows * row_bytes + scales.rows * scales.cols * geometry.scale_bits / 8 + second;
}

}  // namespace sluice::format
