// SPDX-License-Identifier: Apache-2.0
#include "format/formats.h"

#include <fmt/format.h>

#include <algorithm>

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

namespace {

/// Those of the experts that have these formats, as runs: "0-2, 7".
std::string experts_text(const std::vector<OtherFormats>& others, const MatrixFormats& formats) {
  std::string text;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (others[i].formats != formats) continue;
    const std::int32_t first = others[i].expert;
    std::int32_t last = first;
    while (i + 1 < others.size() && others[i + 1].expert == last + 1 && others[i + 1].formats == formats)
      last = others[++i].expert;
    text += text.empty() ? "" : ", ";
    text += first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
  }
  return text;
}

}  // namespace

std::string storage_text(const MatrixFormats& formats) {
  const std::string gate = formats.gate ? storage_text(*formats.gate, formats.gate_grouping) : std::string();
  const std::string up = storage_text(formats.up, formats.up_grouping),
                    down = storage_text(formats.down, formats.down_grouping);
  if (up == down && (!formats.gate || gate == up)) return up;
  return (formats.gate ? gate + "/" : "") + up + "/" + down;
}

std::string storage_text(const ExpertsSpec& spec) {
  std::string text = storage_text(spec.formats);
  const auto& others = spec.others;
  std::vector<MatrixFormats> listed;  // in the order of their first experts
  for (const OtherFormats& other : others) {
    if (std::ranges::find(listed, other.formats) != listed.end()) continue;
    listed.push_back(other.formats);
    text += fmt::format("; experts {}: {}", experts_text(others, other.formats), storage_text(other.formats));
  }
  return text;
}

std::int64_t experts_bytes(const ExpertsSpec& spec, std::int64_t experts) {
  using format::matrix_bytes;
  const auto bytes_of = [&](const MatrixFormats& formats) {
    const std::int64_t wide = spec.intermediate, hidden = spec.hidden;
    const std::int64_t gate =
        formats.gate ? matrix_bytes(geometry(*formats.gate, formats.gate_grouping), wide, hidden) : 0;
    const std::int64_t up = matrix_bytes(geometry(formats.up, formats.up_grouping), wide, hidden);
    return gate + up + matrix_bytes(geometry(formats.down, formats.down_grouping), hidden, wide);
  };
  if (spec.others.empty()) return experts * bytes_of(spec.formats);
  // As many times the mean of those that are here.
  std::int64_t here = (spec.local_experts - std::ssize(spec.others)) * bytes_of(spec.formats);
  for (const OtherFormats& other : spec.others) here += bytes_of(other.formats);
  return here * experts / spec.local_experts;
}

}  // namespace sluice
