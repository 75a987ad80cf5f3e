// SPDX-License-Identifier: Apache-2.0
// What the encoders share. Only src/format includes this.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/bits.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/formats.h"

namespace sluice::format {

struct MatrixSize {
  std::int64_t rows = 0, cols = 0;
};

/// The elements that share a scale.
struct Group {
  const float* values = nullptr;
  std::int64_t first_row = 0, first_col = 0;
  std::int64_t last_row = 0, last_col = 0;  // one past
  std::int64_t stride = 0;                  // elements from row to row

  template <class Visit>
  void each(Visit visit) const {
    for (std::int64_t r = first_row; r < last_row; ++r)
      for (std::int64_t c = first_col; c < last_col; ++c) visit(r, c, values[r * stride + c]);
  }

  float amax() const {
    float largest = 0;
    each([&](std::int64_t, std::int64_t, float value) { largest = std::max(largest, std::abs(value)); });
    return largest;
  }
};

/// Zeroed buffers of the right sizes and a matrix that views them; scales are of type `scales`.
Encoded make_encoded(Format format, MatrixSize size, DType scales);

/// The group whose scale is (i, j).
Group scale_group(const Geometry& geometry, const float* values, MatrixSize size, ScaleShape at);

/// Throws invalid_argument when a value is infinite or NaN, for which there is no scale, or when the columns
/// of a format with groups within the row (MX, NVFP4) do not divide into whole groups.
void check_encodable(Format format, const float* values, MatrixSize size);

/// Group by group: `pick(amax, at)` stores a scale at `at` and returns the number that codes will be
/// multiplied by; `put(row, col, quotient)` stores a code.
template <class F, class Pick, class Put>
void encode_groups(const float* values, Encoded& encoded, Pick pick, Put put) {
  const MatrixSize size{encoded.matrix.rows, encoded.matrix.cols};
  const ScaleShape shape = scale_shape(F::geometry, size.rows, size.cols);
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    for (std::int64_t j = 0; j < shape.cols; ++j) {
      const Group group = scale_group(F::geometry, values, size, {i, j});
      const ScalesView& scales = encoded.matrix.scales;
      std::byte* at = encoded.scales.data() + i * scales.row_stride + j * scales.col_stride;
      const double scale = pick(group.amax(), at);
      group.each([&](std::int64_t r, std::int64_t c, float value) {
        put(r, c, static_cast<float>(static_cast<double>(value) / scale));
      });
    }
  }
}

/// Stores 4-bit codes, the even column in the low nibble, into zeroed bytes.
struct PutE2m1 {
  Encoded& encoded;
  void operator()(std::int64_t r, std::int64_t c, float quotient) const {
    std::byte& pair = encoded.codes[static_cast<std::size_t>(r * encoded.matrix.row_stride + c / 2)];
    pair |= std::byte{float_to_e2m1(quotient)} << (c % 2 == 0 ? 0 : 4);
  }
};

struct PutE4m3 {
  Encoded& encoded;
  void operator()(std::int64_t r, std::int64_t c, float quotient) const {
    encoded.codes[static_cast<std::size_t>(r * encoded.matrix.row_stride + c)] =
        std::byte{float_to_e4m3(quotient)};
  }
};

}  // namespace sluice::format
