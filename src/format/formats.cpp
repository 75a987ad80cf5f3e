// SPDX-License-Identifier: Apache-2.0
#include "format/formats.h"

namespace sluice {

template <>
std::span<const std::string_view> Format::all() {
  return Formats::kNames;
}

const format::Geometry& geometry(Format format) {
  return *Formats::visit(format, []<class F>() { return &F::geometry; });
}

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

std::int64_t experts_bytes(const ExpertsSpec& spec, std::int64_t experts) {
  const auto bytes = [](Format format, std::int64_t rows, std::int64_t cols) {
    return format::matrix_bytes(geometry(format), rows, cols);
  };
  const std::int64_t gate = spec.formats.gate ? bytes(*spec.formats.gate, spec.intermediate, spec.hidden) : 0;
  const std::int64_t up = bytes(spec.formats.up, spec.intermediate, spec.hidden);
  const std::int64_t down = bytes(spec.formats.down, spec.hidden, spec.intermediate);
  return experts * (gate + up + down);
}

}  // namespace sluice
