// SPDX-License-Identifier: Apache-2.0
#include "format/encoding.h"

#include <fmt/format.h>

#include "core/error.h"

namespace sluice::format {

Encoded make_encoded(Format format, MatrixSize size, DType scales) {
  const Geometry& g = sluice::geometry(format);
  const ScaleShape shape = scale_shape(g, size.rows, size.cols);
  const std::int64_t row_bytes =
      g.block_cols > 0 ? line_bytes(g, size.cols) : (size.cols * g.code_bits + 7) / 8;
  const std::ptrdiff_t scale_bytes = bits(scales) / 8;
  Encoded encoded{
      .codes = std::vector<std::byte>(static_cast<std::size_t>(size.rows * row_bytes)),
      .scales = std::vector<std::byte>(static_cast<std::size_t>(shape.rows * shape.cols * scale_bytes)),
      .matrix = {.format = format, .rows = size.rows, .cols = size.cols}};
  encoded.matrix.codes = encoded.codes.data();
  encoded.matrix.row_stride = row_bytes;
  encoded.matrix.col_stride = g.code_bits / 8;
  if (g.scaled)
    encoded.matrix.scales = {.data = encoded.scales.data(),
                             .dtype = scales,
                             .row_stride = shape.cols * scale_bytes,
                             .col_stride = scale_bytes};
  return encoded;
}

Group scale_group(const Geometry& geometry, const float* values, MatrixSize size, ScaleShape at) {
  const std::int64_t rows = geometry.group_rows == 0 ? size.rows : geometry.group_rows;
  const std::int64_t cols = geometry.group_cols == 0 ? size.cols : geometry.group_cols;
  return {.values = values,
          .first_row = at.rows * rows,
          .first_col = at.cols * cols,
          .last_row = std::min(size.rows, (at.rows + 1) * rows),
          .last_col = std::min(size.cols, (at.cols + 1) * cols),
          .stride = size.cols};
}

void check_encodable(Format format, const float* values, MatrixSize size) {
  const Geometry& g = sluice::geometry(format);
  const bool groups_in_rows = g.group_rows == 1 && g.group_cols > 0;
  const std::int64_t group = g.block_cols > 0 ? g.block_cols : g.group_cols;
  require(!groups_in_rows || size.cols % group == 0, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{
        .code = "ragged_group",
        .what = fmt::format("cannot encode {} columns as {}", size.cols, format.str()),
        .why = fmt::format("{} columns share a scale, and {} is not a multiple", group, size.cols),
        .todo = "pad the matrix with zeros, or choose another format"};
  });
  for (std::int64_t i = 0; i < size.rows * size.cols; ++i)
    require(std::isfinite(values[i]), ErrorKind::invalid_argument, [&] {
      return ErrorInfo{.code = "not_finite",
                       .what = fmt::format("cannot encode row {}, column {} as {}", i / size.cols,
                                           i % size.cols, format.str()),
                       .why = fmt::format("the value is {}, and no scale can hold it", values[i])};
    });
}

}  // namespace sluice::format
