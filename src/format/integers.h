// SPDX-License-Identifier: Apache-2.0
// Integers of 2 to 8 bits: value = (code - zero) * scale, code and zero unsigned; without zero points the
// zero is 2^(bits - 1). Scales and zero points belong to a row and a group of columns. As float32 a value is
// exact with scales of half the width, and has been rounded once with float32 scales.
//
// Files pack the same integers in many ways. This is the one place that reads them (and writes them, for
// tests and samples): everything else asks for codes, zeros and groups of a row.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/geometry.h"

namespace sluice::format {

template <int kBits>
struct Integers {
  static constexpr char kName[] = {'i', 'n', 't', static_cast<char>('0' + kBits)};
  static constexpr std::string_view name{kName, sizeof(kName)};
  static constexpr Geometry geometry{.code_bits = kBits,
                                     .group_rows = 1,
                                     .scaled = true,
                                     .scale_bits = 16,
                                     .line_bits = 32,
                                     .integers = true};
  static constexpr bool accepts_scales(DType dtype) {
    return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32;
  }
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  /// A scale a row, no zero points; see encode_integers.
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

using Int2 = Integers<2>;
using Int3 = Integers<3>;
using Int4 = Integers<4>;
using Int5 = Integers<5>;
using Int6 = Integers<6>;
using Int7 = Integers<7>;
using Int8 = Integers<8>;

/// Bits of a code and of a zero point.
int integer_bits(const WeightMatrix& matrix);

/// Groups of a row: scales, and zero points where there are any.
std::int64_t groups_of_row(const WeightMatrix& matrix);

/// The group of column `col`.
std::int64_t group_of_column(const WeightMatrix& matrix, std::int64_t col);

/// A run of columns of a row.
struct RowPart {
  std::int64_t row = 0, first = 0, count = 0;
};

/// The codes of part of a row.
void codes_of_row(const WeightMatrix& matrix, RowPart part, std::uint8_t* out);
/// The codes of a row, matrix.cols of them.
void codes_of_row(const WeightMatrix& matrix, std::int64_t row, std::uint8_t* out);

/// The zero point of group `group` of a row, a v1 file's offset resolved.
unsigned zero_of(const WeightMatrix& matrix, std::int64_t row, std::int64_t group);
/// The zero points of a row, groups_of_row of them.
void zeros_of_row(const WeightMatrix& matrix, std::int64_t row, std::uint8_t* out);

/// An integer of a grid.
struct GridPlace {
  std::int64_t line = 0, position = 0;
};
GridPlace place_in(const PackedGrid& grid, std::int64_t row, std::int64_t col);

/// One integer of a grid at `data`.
unsigned integer_at(const std::byte* data, const PackedGrid& grid, int bits, GridPlace place);
/// Replaces it.
void store_integer(std::byte* data, const PackedGrid& grid, int bits, GridPlace place, unsigned value);

/// 32-bit words of a line of so many integers.
std::int64_t words_of_line(Packing packing, int bits, std::int64_t integers);

/// How files lay out a matrix [rows, cols] of integers.
enum class IntegerFile : std::uint8_t {
  rows,         // each row densely packed (compressed-tensors); zero points packed along their columns
  padded_rows,  // the same in padded words
  gptq,         // qweight [cols * bits / 32, rows], zero points stored minus one
  awq,          // qweight [cols, rows / 8]; 4 bits
};

struct IntegerRecipe {
  Grouping grouping = {};
  IntegerFile file = IntegerFile::rows;
};

/// True when a matrix of these sizes can be laid out so: GPTQ and AWQ fill whole words along both sides.
bool can_lay_out(Format format, const IntegerRecipe& recipe, std::int64_t rows, std::int64_t cols);

/// Buffers laid out by the recipe, all codes 0, all zero points 2^(bits - 1), scales of BF16 1. With
/// act-order the columns are dealt out to the groups in an order that is none of a file: a stride through the
/// row.
Encoded make_integers(Format format, const IntegerRecipe& recipe, std::int64_t rows, std::int64_t cols);

void set_code(Encoded& encoded, std::int64_t row, std::int64_t col, unsigned code);
void set_zero(Encoded& encoded, std::int64_t row, std::int64_t group, unsigned zero);

/// What to encode.
struct IntegerValues {
  const float* values = nullptr;  // [rows, cols]
  std::int64_t rows = 0, cols = 0;
};

/// Round to nearest. Symmetric: scale = amax / (2^(bits - 1) - 1). With zero points: scale = (max - min) /
/// (2^bits - 1) over the group and 0, zero = round(-min / scale). Scales are BF16, which has float32's range.
Encoded encode_integers(Format format, const IntegerRecipe& recipe, const IntegerValues& input);

}  // namespace sluice::format
