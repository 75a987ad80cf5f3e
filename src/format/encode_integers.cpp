// SPDX-License-Identifier: Apache-2.0
// Writing integers, for tests and samples: layouts of files, and round-to-nearest quantisation.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/encoding.h"
#include "format/integers.h"
#include "format/scales.h"

namespace sluice::format {
namespace {

/// Lines of `words` words, one after the other.
PackedGrid lines(Packing packing, PackedGrid::Along along, std::int64_t words) {
  return {.packing = packing, .along = along, .line_stride = 4 * words, .word_stride = 4};
}

/// Word w of all `count` lines together: [words, lines].
PackedGrid side_by_side(Packing packing, PackedGrid::Along along, std::int64_t count) {
  return {.packing = packing, .along = along, .line_stride = 4, .word_stride = 4 * count};
}

struct Grids {
  PackedGrid codes, zeros;
  std::int64_t code_words = 0, zero_words = 0;
};

Grids grids_of(IntegerFile file, int bits, std::int64_t rows, std::int64_t cols, std::int64_t groups) {
  using Along = PackedGrid::Along;
  const Packing packing = file == IntegerFile::padded_rows ? Packing::padded
                          : file == IntegerFile::awq       ? Packing::awq
                                                           : Packing::dense;
  const std::int64_t along_rows = words_of_line(packing, bits, rows),
                     along_cols = words_of_line(packing, bits, cols);
  Grids grids{.codes = lines(packing, Along::row, along_cols),
              .zeros = side_by_side(packing, Along::column, groups),
              .code_words = rows * along_cols,
              .zero_words = groups * along_rows};
  if (file == IntegerFile::gptq) grids.codes = side_by_side(packing, Along::row, rows);
  if (file == IntegerFile::awq) {
    grids.codes = lines(packing, Along::column, along_rows);
    grids.code_words = cols * along_rows;
  }
  if (file == IntegerFile::gptq || file == IntegerFile::awq)
    grids.zeros = lines(packing, Along::column, along_rows);
  return grids;
}

/// The group of every column: a stride through the row that visits all of it, cut into groups.
std::vector<std::byte> deal_out(std::int64_t cols, std::int64_t group) {
  std::int64_t stride = cols / 3 + 1;
  while (std::gcd(stride, cols) != 1) ++stride;
  std::vector<std::byte> groups(static_cast<std::size_t>(4 * cols));
  for (std::int64_t i = 0; i < cols; ++i) {
    const std::int64_t its = group == 0 ? 0 : i / group;
    store(groups.data() + 4 * (i * stride % cols), static_cast<std::int32_t>(its));
  }
  return groups;
}

std::vector<std::byte> words(std::int64_t count) {
  return std::vector<std::byte>(static_cast<std::size_t>(4 * count));
}

/// What a group needs to know of its values.
struct Range {
  float least = 0, most = 0;  // 0 is always within
  void add(float value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

struct Affine {
  double scale = 1;
  int zero = 0;
};

/// The scale in BF16, never subnormal and never infinite, and the zero point that goes with it.
Affine pick(const Range& range, int bits, bool zero_points) {
  const int top = (1 << bits) - 1, middle = 1 << (bits - 1);
  const double least = range.least, most = range.most;
  const double wanted = zero_points ? (most - least) / top : std::max(-least, most) / (middle - 1);
  constexpr double smallest = std::numeric_limits<float>::min();
  constexpr float largest = 0x1.FEp127f;  // of BF16
  const auto bounded = static_cast<float>(std::min(std::max(wanted, smallest), double{largest}));
  const double scale = wanted == 0 ? 1.0 : bf16_to_float(float_to_bf16(bounded));
  if (!zero_points) return {scale, middle};
  return {scale, static_cast<int>(std::clamp(std::nearbyint(-least / scale), 0.0, double(top)))};
}

void store_scale(Encoded& encoded, std::int64_t row, std::int64_t group, double scale) {
  const ScalesView& view = encoded.matrix.scales;
  store(encoded.scales.data() + row * view.row_stride + group * view.col_stride,
        float_to_bf16(static_cast<float>(scale)));
}

void encode_row(const float* values, std::int64_t row, Encoded& encoded) {
  const WeightMatrix& matrix = encoded.matrix;
  const int bits = integer_bits(matrix), top = (1 << bits) - 1;
  std::vector<Range> ranges(static_cast<std::size_t>(groups_of_row(matrix)));
  for (std::int64_t c = 0; c < matrix.cols; ++c)
    ranges[static_cast<std::size_t>(group_of_column(matrix, c))].add(values[c]);
  std::vector<Affine> affine;
  for (const Range& range : ranges) {
    const auto group = std::ssize(affine);
    affine.push_back(pick(range, bits, matrix.integers.grouping.zero_points));
    store_scale(encoded, row, group, affine.back().scale);
    if (matrix.integers.grouping.zero_points)
      set_zero(encoded, row, group, static_cast<unsigned>(affine.back().zero));
  }
  for (std::int64_t c = 0; c < matrix.cols; ++c) {
    const Affine& its = affine[static_cast<std::size_t>(group_of_column(matrix, c))];
    const double code = std::nearbyint(values[c] / its.scale) + its.zero;
    set_code(encoded, row, c, static_cast<unsigned>(std::clamp(code, 0.0, double(top))));
  }
}

}  // namespace

bool can_lay_out(Format format, const IntegerRecipe& recipe, std::int64_t rows, std::int64_t cols) {
  const int bits = sluice::geometry(format).code_bits;
  switch (recipe.file) {
    case IntegerFile::awq:
      return bits == 4 && rows % 8 == 0;
    case IntegerFile::gptq:
      return rows * bits % 32 == 0 && cols * bits % 32 == 0;
    default:
      return true;
  }
}

Encoded make_integers(Format format, const IntegerRecipe& recipe, std::int64_t rows, std::int64_t cols) {
  const Grouping& grouping = recipe.grouping;
  const Geometry g = sluice::geometry(format, grouping);
  const std::int64_t groups = scale_shape(g, rows, cols).cols;
  const Grids grids = grids_of(recipe.file, g.code_bits, rows, cols, groups);
  Encoded encoded{.codes = words(grids.code_words),
                  .scales = std::vector<std::byte>(static_cast<std::size_t>(2 * rows * groups)),
                  .matrix = {.format = format, .rows = rows, .cols = cols}};
  if (grouping.zero_points) encoded.zeros = words(grids.zero_words);
  if (grouping.act_order) encoded.column_groups = deal_out(cols, grouping.columns);
  WeightMatrix& matrix = encoded.matrix;
  matrix.codes = encoded.codes.data();
  matrix.scales = {encoded.scales.data(), DType::bf16, 2 * groups, 2};
  matrix.integers = {.grouping = grouping,
                     .codes = grids.codes,
                     .zeros = grouping.zero_points ? encoded.zeros.data() : nullptr,
                     .zeros_grid = grids.zeros,
                     .zero_offset = recipe.file == IntegerFile::gptq && grouping.zero_points ? 1 : 0,
                     .column_groups = grouping.act_order ? encoded.column_groups.data() : nullptr};
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t group = 0; group < groups; ++group) {
      store_scale(encoded, r, group, 1.0);
      if (grouping.zero_points) set_zero(encoded, r, group, 1u << (g.code_bits - 1));
    }
  return encoded;
}

void set_code(Encoded& encoded, std::int64_t row, std::int64_t col, unsigned code) {
  const PackedGrid& grid = encoded.matrix.integers.codes;
  store_integer(encoded.codes.data(), grid, integer_bits(encoded.matrix), place_in(grid, row, col), code);
}

void set_zero(Encoded& encoded, std::int64_t row, std::int64_t group, unsigned zero) {
  const IntegerParts& parts = encoded.matrix.integers;
  const unsigned stored = zero - static_cast<unsigned>(parts.zero_offset);
  store_integer(encoded.zeros.data(), parts.zeros_grid, integer_bits(encoded.matrix),
                place_in(parts.zeros_grid, row, group), stored);
}

Encoded encode_integers(Format format, const IntegerRecipe& recipe, const IntegerValues& input) {
  check_encodable(format, input.values, {input.rows, input.cols});
  Encoded encoded = make_integers(format, recipe, input.rows, input.cols);
  for (std::int64_t r = 0; r < input.rows; ++r) encode_row(input.values + r * input.cols, r, encoded);
  return encoded;
}

}  // namespace sluice::format
