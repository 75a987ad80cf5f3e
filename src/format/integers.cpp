// SPDX-License-Identifier: Apache-2.0
#include "format/integers.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/bits.h"
#include "format/formats.h"
#include "format/scales.h"

namespace sluice::format {
namespace {

/// Where the integers of a word are that AWQ packed: integer i is nibble kAwqNibble[i]. The inverse of 0 2 4
/// 6 1 3 5 7.
constexpr std::array<int, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

/// The bits of one integer: from `shift` of word `word` upwards, and the next word's lowest where it
/// straddles.
struct Bits {
  std::int64_t word = 0;
  int shift = 0;
};

Bits bits_of(Packing packing, int bits, std::int64_t position) {
  switch (packing) {
    case Packing::padded: {
      const int whole = 32 / bits;
      return {position / whole, static_cast<int>(position % whole) * bits};
    }
    case Packing::awq:
      return {position / 8, 4 * kAwqNibble[static_cast<std::size_t>(position % 8)]};
    case Packing::dense:
      break;
  }
  return {position * bits / 32, static_cast<int>(position * bits % 32)};
}

/// One past the last column that is surely of the group of column `col`.
std::int64_t run_end(const WeightMatrix& matrix, std::int64_t col) {
  const IntegerParts& parts = matrix.integers;
  if (parts.column_groups != nullptr) return col + 1;
  const std::int64_t columns = parts.grouping.columns;
  return columns == 0 ? matrix.cols : (col / columns + 1) * columns;
}

/// Codes of one group of a row, as numbers.
template <class Real>
void scale_group(const WeightMatrix& matrix, std::int64_t row, std::int64_t group,
                 std::span<const std::uint8_t> codes, Real* out) {
  const auto scale = static_cast<Real>(scale_at(matrix.scales, row, group));
  const int zero = static_cast<int>(zero_of(matrix, row, group));
  for (std::size_t i = 0; i < codes.size(); ++i) out[i] = static_cast<Real>(int{codes[i]} - zero) * scale;
}

template <class Real>
void decode(const WeightMatrix& matrix, std::int64_t row, Real* out) {
  constexpr std::int64_t kPart = 256;
  std::array<std::uint8_t, kPart> codes;
  for (std::int64_t first = 0; first < matrix.cols; first += kPart) {
    const std::int64_t count = std::min(kPart, matrix.cols - first);
    codes_of_row(matrix, {.row = row, .first = first, .count = count}, codes.data());
    for (std::int64_t at = 0; at < count;) {  // runs of columns of one group
      const std::int64_t group = group_of_column(matrix, first + at);
      const std::int64_t end = std::min(count, run_end(matrix, first + at) - first);
      scale_group(matrix, row, group,
                  std::span(codes).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(end - at)),
                  out + first + at);
      at = end;
    }
  }
}

}  // namespace

int integer_bits(const WeightMatrix& matrix) { return sluice::geometry(matrix.format).code_bits; }

std::int64_t groups_of_row(const WeightMatrix& matrix) {
  return scale_shape(sluice::geometry(matrix), matrix.rows, matrix.cols).cols;
}

std::int64_t group_of_column(const WeightMatrix& matrix, std::int64_t col) {
  const IntegerParts& parts = matrix.integers;
  if (parts.column_groups != nullptr) return load<std::int32_t>(parts.column_groups + 4 * col);
  return parts.grouping.columns == 0 ? 0 : col / parts.grouping.columns;
}

GridPlace place_in(const PackedGrid& grid, std::int64_t row, std::int64_t col) {
  return grid.along == PackedGrid::Along::row ? GridPlace{row, col} : GridPlace{col, row};
}

unsigned integer_at(const std::byte* data, const PackedGrid& grid, int bits, GridPlace place) {
  const Bits at = bits_of(grid.packing, bits, place.position);
  const std::byte* word = data + place.line * grid.line_stride + at.word * grid.word_stride;
  std::uint32_t value = load<std::uint32_t>(word) >> at.shift;
  if (at.shift + bits > 32) value |= load<std::uint32_t>(word + grid.word_stride) << (32 - at.shift);
  return value & ((1u << bits) - 1);
}

void store_integer(std::byte* data, const PackedGrid& grid, int bits, GridPlace place, unsigned value) {
  const Bits at = bits_of(grid.packing, bits, place.position);
  std::byte* word = data + place.line * grid.line_stride + at.word * grid.word_stride;
  const std::uint32_t mask = (1u << bits) - 1;
  store(word, (load<std::uint32_t>(word) & ~(mask << at.shift)) | (value & mask) << at.shift);
  if (at.shift + bits <= 32) return;
  const int below = 32 - at.shift;
  word += grid.word_stride;
  store(word, (load<std::uint32_t>(word) & ~(mask >> below)) | (value & mask) >> below);
}

namespace {

/// Eight codes of 4 bits, a byte each.
std::uint64_t bytes_of_nibbles(std::uint32_t word) {
  std::uint64_t bytes = word;
  bytes = (bytes | bytes << 16) & 0x0000FFFF0000FFFFu;
  bytes = (bytes | bytes << 8) & 0x00FF00FF00FF00FFu;
  return (bytes | bytes << 4) & 0x0F0F0F0F0F0F0F0Fu;
}

/// Of a grid whose lines are rows, in words that are read in order.
void codes_along(const WeightMatrix& matrix, RowPart part, std::uint8_t* out) {
  const int bits = integer_bits(matrix);
  const PackedGrid& grid = matrix.integers.codes;
  const Bits start = bits_of(grid.packing, bits, part.first);
  const int end = grid.packing == Packing::dense ? 32 : 32 / bits * bits;  // of a word's bits, those in use
  const std::byte* word = matrix.codes + part.row * grid.line_stride + start.word * grid.word_stride;
  std::int64_t i = 0;
  if (bits == 4 && start.shift == 0)  // 4 and 8 bits are by far the most frequent
    for (; i + 8 <= part.count; i += 8, word += grid.word_stride)
      store(reinterpret_cast<std::byte*>(out + i), bytes_of_nibbles(load<std::uint32_t>(word)));
  if (bits == 8 && start.shift == 0)
    for (; i + 4 <= part.count; i += 4, word += grid.word_stride)
      store(reinterpret_cast<std::byte*>(out + i), load<std::uint32_t>(word));
  if (i == part.count) return;
  std::uint32_t value = load<std::uint32_t>(word);
  int shift = start.shift;
  for (; i < part.count; ++i) {
    if (shift >= end) {
      word += grid.word_stride;
      value = load<std::uint32_t>(word);
      shift -= end;
    }
    std::uint32_t code = value >> shift;
    if (shift + bits > end) {  // of dense packing: the upper bits are the next word's lowest
      word += grid.word_stride;
      value = load<std::uint32_t>(word);
      code |= value << (32 - shift);
      shift -= 32;
    }
    out[i] = static_cast<std::uint8_t>(code & ((1u << bits) - 1));
    shift += bits;
  }
}

/// Of a grid whose lines are columns: a row is at the same place of every line.
void codes_across(const WeightMatrix& matrix, RowPart part, std::uint8_t* out) {
  const int bits = integer_bits(matrix);
  const PackedGrid& grid = matrix.integers.codes;
  const Bits at = bits_of(grid.packing, bits, part.row);
  const std::byte* word = matrix.codes + part.first * grid.line_stride + at.word * grid.word_stride;
  for (std::int64_t i = 0; i < part.count; ++i, word += grid.line_stride) {
    std::uint32_t code = load<std::uint32_t>(word) >> at.shift;
    if (at.shift + bits > 32) code |= load<std::uint32_t>(word + grid.word_stride) << (32 - at.shift);
    out[i] = static_cast<std::uint8_t>(code & ((1u << bits) - 1));
  }
}

}  // namespace

void codes_of_row(const WeightMatrix& matrix, RowPart part, std::uint8_t* out) {
  const int bits = integer_bits(matrix);
  const PackedGrid grid = matrix.integers.codes;
  if (part.count <= 0) return;
  if (grid.along == PackedGrid::Along::column) return codes_across(matrix, part, out);
  if (grid.packing != Packing::awq) return codes_along(matrix, part, out);
  for (std::int64_t i = 0; i < part.count; ++i) {
    const GridPlace at = place_in(grid, part.row, part.first + i);
    out[i] = static_cast<std::uint8_t>(integer_at(matrix.codes, grid, bits, at));
  }
}

void codes_of_row(const WeightMatrix& matrix, std::int64_t row, std::uint8_t* out) {
  codes_of_row(matrix, {.row = row, .first = 0, .count = matrix.cols}, out);
}

unsigned zero_of(const WeightMatrix& matrix, std::int64_t row, std::int64_t group) {
  const int bits = integer_bits(matrix);
  const IntegerParts& parts = matrix.integers;
  if (parts.zeros == nullptr) return 1u << (bits - 1);
  const GridPlace at = place_in(parts.zeros_grid, row, group);
  const unsigned stored = integer_at(parts.zeros, parts.zeros_grid, bits, at);
  return (stored + static_cast<unsigned>(parts.zero_offset)) & ((1u << bits) - 1);
}

void zeros_of_row(const WeightMatrix& matrix, std::int64_t row, std::uint8_t* out) {
  const std::int64_t groups = groups_of_row(matrix);
  for (std::int64_t group = 0; group < groups; ++group)
    out[group] = static_cast<std::uint8_t>(zero_of(matrix, row, group));
}

std::int64_t words_of_line(Packing packing, int bits, std::int64_t integers) {
  if (packing == Packing::dense) return (integers * bits + 31) / 32;
  const std::int64_t whole = 32 / bits;
  return (integers + whole - 1) / whole;
}

template <int kBits>
void Integers<kBits>::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode(matrix, row, out);
}

template <int kBits>
void Integers<kBits>::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode(matrix, row, out);
}

template <int kBits>
Encoded Integers<kBits>::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  return encode_integers(Formats::of<Integers<kBits>>(), {}, {values, rows, cols});
}

template struct Integers<2>;
template struct Integers<3>;
template struct Integers<4>;
template struct Integers<5>;
template struct Integers<6>;
template struct Integers<7>;
template struct Integers<8>;

}  // namespace sluice::format
