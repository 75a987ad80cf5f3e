// SPDX-License-Identifier: Apache-2.0
#include "format/formats.h"

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
template <>
std::span<const std::string_view> Format::all() {
  return Formats::kNames;
}

const format::Geometry& geometry(Format format) {
  return *Formats::visit(format, []<class F>() { return &F::geometry; });
}

format::Geometry geometry(Format format, const Grouping& grouping) {
  format::Geometry its = geometry(format);
  if (!its.integers) return its;
  its.group_cols = grouping.columns;
  its.zero_points = grouping.zero_points;
  its.act_order = grouping.act_order;
  return its;
}

format::Geometry geometry(const WeightMatrix& matrix) {
  return geometry(matrix.format, matrix.integers.grouping);
}

bool is_integer(Format format) { return geometry(format).integers; }

bool is_ggml_block(Format format) { return geometry(format).block_cols > 0; }

bool accepts_scales(Format format, DType dtype) {
  return Formats::visit(format, [&]<class F>() { return F::accepts_scales(dtype); });
}

void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  Formats::visit(matrix.format, [&]<class F>() { F::decode_row(matrix, row, out); });
}

void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  Formats::visit(matrix.format, [&]<class F>() { F::decode_row(matrix, row, out); });
}

format::Encoded encode(Format format, const float* values, std::int64_t rows, std::int64_t cols) {
  return Formats::visit(format, [&]<class F>() { return F::encode(values, rows, cols); });
}

format::Encoded encode(Format format, const Grouping& grouping, const float* values, std::int64_t rows,
                       std::int64_t cols) {
  require(is_integer(format), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "not_integers",
                     .what = fmt::format("{} has groups of its own", format.str()),
                     .todo = "encode it without a grouping"};
  });
  return format::encode_integers(format, {.grouping = grouping}, {values, rows, cols});
}

std::string storage_text(Format format, const Grouping& grouping) {
  if (!is_integer(format)) return std::string(format.str());
  const std::string group = grouping.columns == 0 ? "row" : fmt::format("g{}", grouping.columns);
  return fmt::format("{} {}{}{}", format.str(), group, grouping.zero_points ? ", zero points" : "",
                     grouping.act_order ? ", act-order" : "");
}

std::string storage_text(const MatrixFormats& formats) {
  const std::string gate = formats.gate ? storage_text(*formats.gate, formats.gate_grouping) : std::string();
  const std::string up = storage_text(formats.up, formats.up_grouping),
                    down = storage_text(formats.down, formats.down_grouping);
  if (up == down && (!formats.gate || gate == up)) return up;
  return (formats.gate ? gate + "/" : "") + up + "/" + down;
}

std::int64_t experts_bytes(const ExpertsSpec& spec, std::int64_t experts) {
  using format::matrix_bytes;
  const MatrixFormats& formats = spec.formats;
  const std::int64_t wide = spec.intermediate, hidden = spec.hidden;
  const std::int64_t gate =
      formats.gate ? matrix_bytes(geometry(*formats.gate, formats.gate_grouping), wide, hidden) : 0;
  const std::int64_t up = matrix_bytes(geometry(formats.up, formats.up_grouping), wide, hidden);
  const std::int64_t down = matrix_bytes(geometry(formats.down, formats.down_grouping), hidden, wide);
  return experts * (gate + up + down);
}

}  // namespace sluice
