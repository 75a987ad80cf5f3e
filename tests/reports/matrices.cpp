// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/toy.h"

#include <cmath>
#include <stdexcept>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "format/f16.h"

namespace sluice::reports {
namespace {

constexpr unsigned kE2m1One = 0x2, kE2m1OneAndAHalf = 0x3, kE2m1Minus = 0x8;

bool is_code_of_two_bits(double value) {  // 1 or 1.5 times a power of two
  int exponent = 0;
  const double mantissa = std::frexp(std::abs(value), &exponent);
  return mantissa == 0.5 || mantissa == 0.75;
}

std::byte* scale_place(format::Encoded& encoded, std::int64_t i, std::int64_t j) {
  const ScalesView& view = encoded.matrix.scales;
  return encoded.scales.data() + (view.data - encoded.scales.data()) + i * view.row_stride +
         j * view.col_stride;
}

void put_plain(format::Encoded& encoded, const Entry& entry) {
  const WeightMatrix& matrix = encoded.matrix;
  std::byte* at = encoded.codes.data() + entry.row * matrix.row_stride + entry.col * matrix.col_stride;
  const auto value = static_cast<float>(entry.value);
  if (matrix.format == Formats::of<format::F32>())
    store<float>(at, value);
  else if (matrix.format == Formats::of<format::F16>())
    store<std::uint16_t>(at, format::float_to_f16(value));
  else
    store<std::uint16_t>(at, format::float_to_bf16(value));
}

/// One code times one scale.
void put(format::Encoded& encoded, const Entry& entry) {
  const Format format = encoded.matrix.format;
  const format::Geometry& geometry = sluice::geometry(format);
  const double size = std::abs(entry.value);
  const bool negative = std::signbit(entry.value);
  if (!geometry.scaled) {
    put_plain(encoded, entry);
  } else if (geometry.integers) {
    const unsigned zero = 1u << (geometry.code_bits - 1);
    format::set_code(encoded, entry.row, entry.col, negative ? zero - 1 : zero + 1);
    put_scale(encoded, entry.row, format::group_of_column(encoded.matrix, entry.col),
              static_cast<float>(size));
  } else if (geometry.code_bits == 4) {
    const double power = std::exp2(std::ilogb(size));
    const bool half_more = format == kMxfp4 && size != power;
    put_scale(encoded, entry.row, entry.col / geometry.group_cols,
              static_cast<float>(format == kMxfp4 ? power : size));
    put_code(encoded, entry.row, entry.col,
             (half_more ? kE2m1OneAndAHalf : kE2m1One) | (negative ? kE2m1Minus : 0));
  } else {
    put_code(encoded, entry.row, entry.col, format::float_to_e4m3(static_cast<float>(entry.value)));
  }
}

void check(const format::Encoded& encoded, const std::vector<Entry>& entries) {
  const WeightMatrix& matrix = encoded.matrix;
  std::vector<double> row(static_cast<std::size_t>(matrix.cols));
  double sum = 0;
  for (const Entry& entry : entries) sum += std::abs(entry.value);
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    decode_row(matrix, r, row.data());
    for (const double value : row) sum -= std::abs(value);
    for (const Entry& entry : entries)
      if (entry.row == r && row[static_cast<std::size_t>(entry.col)] != entry.value)
        throw std::logic_error("the format does not hold the numbers of a test");
  }
  if (std::abs(sum) > 1e-9) throw std::logic_error("a test's matrix has numbers that nobody wrote");
}

}  // namespace

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  Formats::everything().each([&](Format format) {
    if (!is_ggml_block(format)) formats.push_back(format);
  });
  return formats;
}

bool holds(Format format, double value) {
  return format != kMxfp4 || value == 0 || is_code_of_two_bits(value);
}

format::Encoded blank(Format format, Size size, const Grouping& grouping) {
  if (is_integer(format)) {
    format::Encoded made = format::make_integers(format, {.grouping = grouping}, size.rows, size.cols);
    const unsigned zero = 1u << (sluice::geometry(format).code_bits - 1);
    for (std::int64_t r = 0; r < size.rows; ++r)
      for (std::int64_t c = 0; c < size.cols; ++c) format::set_code(made, r, c, zero);
    return made;
  }
  const std::vector<float> zeros(static_cast<std::size_t>(size.rows * size.cols));
  format::Encoded made = encode(format, zeros.data(), size.rows, size.cols);
  const format::ScaleShape scales = scale_shape(sluice::geometry(format), size.rows, size.cols);
  for (std::int64_t i = 0; i < scales.rows; ++i)
    for (std::int64_t j = 0; j < scales.cols; ++j) put_scale(made, i, j, 1);
  made.matrix.second_scale = 1;
  return made;
}

void put_code(format::Encoded& encoded, std::int64_t row, std::int64_t col, unsigned code) {
  const WeightMatrix& matrix = encoded.matrix;
  const bool half = sluice::geometry(matrix.format).code_bits == 4;
  std::byte& at = encoded.codes[static_cast<std::size_t>(row * matrix.row_stride +
                                                         (half ? col / 2 : col * matrix.col_stride))];
  if (!half)
    at = std::byte(code);
  else if (col % 2 == 0)
    at = (at & std::byte{0xF0}) | std::byte(code);
  else
    at = (at & std::byte{0x0F}) | std::byte(code << 4);
}

void put_scale(format::Encoded& encoded, std::int64_t i, std::int64_t j, float scale) {
  std::byte* at = scale_place(encoded, i, j);
  switch (encoded.matrix.scales.dtype) {
    case DType::f32:
      store<float>(at, scale);
      break;
    case DType::bf16:
      store<std::uint16_t>(at, format::float_to_bf16(scale));
      break;
    case DType::f8_e4m3:
      *at = std::byte{format::float_to_e4m3(scale)};
      break;
    default:
      *at = std::byte{format::e8m0_from_exponent(std::ilogb(scale))};
      break;
  }
}

format::Encoded matrix(Format format, Size size, const std::vector<Entry>& entries,
                       const Grouping& grouping) {
  format::Encoded made = blank(format, size, grouping);
  for (const Entry& entry : entries)
    if (entry.value != 0) put(made, entry);
  check(made, entries);
  return made;
}

std::vector<Entry> identity(std::int64_t size) {
  std::vector<Entry> entries;
  for (std::int64_t i = 0; i < size; ++i) entries.push_back({i, i, 1});
  return entries;
}

std::shared_ptr<format::Encoded> shared(format::Encoded encoded) {
  return std::make_shared<format::Encoded>(std::move(encoded));
}

WeightMatrix every_second_row(const WeightMatrix& both, std::int64_t first) {
  WeightMatrix rows = both;
  rows.rows = both.rows / 2;
  PackedGrid& grid = rows.integers.codes;
  rows.codes += first * (is_integer(both.format) ? grid.line_stride : both.row_stride);
  grid.line_stride *= 2;
  rows.row_stride *= 2;
  if (sluice::geometry(both.format).group_rows == 1) {
    rows.scales.data += first * both.scales.row_stride;
    rows.scales.row_stride *= 2;
  }
  return rows;
}

}  // namespace sluice::reports
