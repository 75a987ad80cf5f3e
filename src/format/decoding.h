// SPDX-License-Identifier: Apache-2.0
// What the decoders of formats with scales share. Only src/format includes this.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bits.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/geometry.h"
#include "format/scales.h"

namespace sluice::format {

/// Row `row` as element times scale, in Real. `element(codes, c)` reads column c of the row that starts at
/// `codes`.
template <class F, class Element, class Real>
void decode_scaled(const WeightMatrix& matrix, std::int64_t row, Element element, Real* out) {
  constexpr Geometry g = F::geometry;
  const std::byte* codes = matrix.codes + row * matrix.row_stride;
  const std::int64_t scale_row = g.group_rows == 0 ? 0 : row / g.group_rows;
  const std::int64_t group = g.group_cols == 0 ? matrix.cols : g.group_cols;
  for (std::int64_t first = 0, j = 0; first < matrix.cols; first += group, ++j) {
    const Real scale = scale_at(matrix.scales, scale_row, j);
    const std::int64_t last = std::min(first + group, matrix.cols);
    for (std::int64_t c = first; c < last; ++c) out[c] = static_cast<Real>(element(codes, c)) * scale;
  }
}

/// Reads 4-bit codes: the even column in the low nibble.
struct E2m1Element {
  float operator()(const std::byte* codes, std::int64_t c) const {
    const auto pair = load<std::uint8_t>(codes + c / 2);
    return kE2m1[c % 2 == 0 ? pair & 15u : pair >> 4];
  }
};

struct E4m3Element {
  std::ptrdiff_t stride;
  float operator()(const std::byte* codes, std::int64_t c) const {
    return e4m3_to_float(load<std::uint8_t>(codes + c * stride));
  }
};

}  // namespace sluice::format
