// SPDX-License-Identifier: Apache-2.0
#include "format/sub_matrix.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/bits.h"
#include "format/formats.h"
#include "format/sub_blocks.h"

namespace sluice::format {
namespace {

/// Scales of the part whose first element is (row, column).
ScalesView scales_from(const WeightMatrix& matrix, std::int64_t row, std::int64_t column) {
  const Geometry shape = sluice::geometry(matrix);
  ScalesView scales = matrix.scales;
  if (scales.data == nullptr) return scales;
  if (shape.group_rows > 0) scales.data += row / shape.group_rows * scales.row_stride;
  if (shape.group_cols > 0) scales.data += column / shape.group_cols * scales.col_stride;
  return scales;
}

WeightMatrix resized(const WeightMatrix& matrix, const Part& part) {
  WeightMatrix made = matrix;
  made.rows = part.rows.size();
  made.cols = part.columns.size();
  return made;
}

// ---- formats of floats

WeightMatrix view_of_floats(const WeightMatrix& matrix, const Part& part) {
  WeightMatrix made = resized(matrix, part);
  const int bits = sluice::geometry(matrix.format).code_bits;
  made.codes += part.rows.first * matrix.row_stride;
  made.codes += bits < 8 ? part.columns.first * bits / 8 : part.columns.first * matrix.col_stride;
  made.scales = scales_from(matrix, part.rows.first, part.columns.first);
  return made;
}

/// Columns [first, last) of a dense row of codes become zeros.
void clear(std::byte* row, int bits, Run columns) {
  if (bits >= 8) {
    std::memset(row + columns.first * bits / 8, 0, static_cast<std::size_t>(columns.size() * bits / 8));
    return;
  }
  for (std::int64_t c = columns.first; c < columns.last; ++c)
    row[c / 2] &= c % 2 == 0 ? std::byte{0xF0} : std::byte{0x0F};
}

WeightMatrix copy_of_floats(const WeightMatrix& matrix, const Part& part, Owned& owned) {
  WeightMatrix made = view_of_floats(matrix, part);
  const int bits = sluice::geometry(matrix.format).code_bits;
  const std::int64_t row_bytes = (made.cols * bits + 7) / 8, width = bits / 8;
  auto codes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(made.rows * row_bytes));
  for (std::int64_t r = 0; r < made.rows; ++r) {
    std::byte* const row = codes->data() + r * row_bytes;
    const std::byte* const from = made.codes + r * made.row_stride;
    if (bits < 8 || made.col_stride == width)
      std::memcpy(row, from, static_cast<std::size_t>(row_bytes));
    else
      for (std::int64_t c = 0; c < made.cols; ++c)
        std::memcpy(row + c * width, from + c * made.col_stride, static_cast<std::size_t>(width));
    clear(row, bits, {0, part.kept.first - part.columns.first});
    clear(row, bits, {part.kept.last - part.columns.first, made.cols});
  }
  made.codes = codes->data();
  made.row_stride = row_bytes;
  made.col_stride = width;
  owned.push_back(std::move(codes));
  return made;
}

// ---- integers

/// Where the grid of a part starts that begins at (row, column); nothing where that is within a word.
std::optional<std::ptrdiff_t> start_in(const PackedGrid& grid, int bits, std::int64_t row,
                                       std::int64_t column) {
  const GridPlace at = place_in(grid, row, column);
  const std::int64_t integers = grid.packing == Packing::dense ? 32 : 32 / bits;
  if (at.position % integers != 0) return {};
  const std::int64_t words = grid.packing == Packing::dense ? bits : 1;
  return at.line * grid.line_stride + at.position / integers * words * grid.word_stride;
}

std::optional<WeightMatrix> view_of_integers(const WeightMatrix& matrix, const Part& part) {
  const Geometry shape = sluice::geometry(matrix);
  const IntegerParts& parts = matrix.integers;
  const bool all_columns = part.columns.size() == matrix.cols;
  if (part.kept != part.columns || (parts.column_groups != nullptr && !all_columns)) return {};
  const int bits = integer_bits(matrix);
  WeightMatrix made = resized(matrix, part);
  const auto codes = start_in(parts.codes, bits, part.rows.first, part.columns.first);
  if (!codes) return {};
  made.codes += *codes;
  made.scales = scales_from(matrix, part.rows.first, part.columns.first);
  if (parts.zeros != nullptr) {
    const std::int64_t group = shape.group_cols == 0 ? 0 : part.columns.first / shape.group_cols;
    const auto zeros = start_in(parts.zeros_grid, bits, part.rows.first, group);
    if (!zeros) return {};
    made.integers.zeros += *zeros;
  }
  made.integers.grouping = grouping_of_part(parts.grouping, made.cols, matrix.cols);
  return made;
}

/// Which group of `matrix` a group of the part is: the last one's again where there are more of them.
std::int64_t group_of_part(const WeightMatrix& matrix, const Part& part, std::int64_t group) {
  if (matrix.integers.column_groups != nullptr) return std::min(group, groups_of_row(matrix) - 1);
  const std::int64_t columns = matrix.integers.grouping.columns;
  return columns == 0 ? 0 : part.columns.first / columns + group;
}

/// With fewer columns than groups every column has a group of its own.
bool alone(const WeightMatrix& matrix, const WeightMatrix& made) {
  return matrix.integers.column_groups != nullptr && made.cols < groups_of_row(matrix);
}

void copy_scales(const WeightMatrix& matrix, const Part& part, Encoded& made) {
  const std::int64_t groups = groups_of_row(made.matrix), width = bits(matrix.scales.dtype) / 8;
  made.scales.assign(static_cast<std::size_t>(made.matrix.rows * groups * width), std::byte{0});
  made.matrix.scales = {made.scales.data(), matrix.scales.dtype, groups * width, width};
  for (std::int64_t r = 0; r < made.matrix.rows; ++r)
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t from = alone(matrix, made.matrix)
                                    ? group_of_column(matrix, part.columns.first + group)
                                    : group_of_part(matrix, part, group);
      std::memcpy(made.scales.data() + (r * groups + group) * width,
                  matrix.scales.data + (part.rows.first + r) * matrix.scales.row_stride +
                      from * matrix.scales.col_stride,
                  static_cast<std::size_t>(width));
      if (made.matrix.integers.grouping.zero_points)
        set_zero(made, r, group, zero_of(matrix, part.rows.first + r, from));
    }
}

void copy_codes(const WeightMatrix& matrix, const Part& part, Encoded& made) {
  for (std::int64_t r = 0; r < made.matrix.rows; ++r)
    for (std::int64_t c = 0; c < made.matrix.cols; ++c) {
      const std::int64_t row = part.rows.first + r, column = part.columns.first + c;
      const bool kept = column >= part.kept.first && column < part.kept.last;
      std::uint8_t code = 0;
      if (kept)
        codes_of_row(matrix, {.row = row, .first = column, .count = 1}, &code);
      else
        code = static_cast<std::uint8_t>(zero_of(matrix, row, group_of_column(matrix, column)));
      set_code(made, r, c, code);
    }
}

WeightMatrix copy_of_integers(const WeightMatrix& matrix, const Part& part, Owned& owned) {
  const Grouping grouping = grouping_of_part(matrix.integers.grouping, part.columns.size(), matrix.cols);
  auto made = std::make_shared<Encoded>(
      make_integers(matrix.format, {.grouping = grouping}, part.rows.size(), part.columns.size()));
  if (grouping.act_order)
    for (std::int64_t c = 0; c < made->matrix.cols; ++c) {
      const std::int64_t group =
          alone(matrix, made->matrix) ? c : group_of_column(matrix, part.columns.first + c);
      store(made->column_groups.data() + 4 * c, static_cast<std::int32_t>(group));
    }
  copy_scales(matrix, part, *made);
  copy_codes(matrix, part, *made);
  const WeightMatrix view = made->matrix;
  owned.push_back(std::move(made));
  return view;
}

}  // namespace

std::int64_t row_unit(Format format) { return std::max(1, sluice::geometry(format).group_rows); }

std::int64_t column_unit(Format format, const Grouping& grouping) {
  if (grouping.act_order) return 1;
  const Geometry shape = sluice::geometry(format, grouping);
  return std::max({1, shape.group_cols, shape.block_cols});
}

Grouping grouping_of_part(const Grouping& grouping, std::int64_t columns, std::int64_t of) {
  Grouping part = grouping;
  if (!grouping.act_order || grouping.columns == 0) return part;
  const std::int64_t groups = (of + grouping.columns - 1) / grouping.columns;
  if (groups == 1 || columns == of) return part;
  if (columns < groups) {
    part.columns = 1;
    return part;
  }
  // The most columns a group with which there are as many groups; rounded down to what kernels like.
  constexpr std::int64_t kRound = 32;
  const std::int64_t most = (columns - 1) / (groups - 1);
  part.columns = static_cast<int>(most < kRound ? most : most / kRound * kRound);
  return part;
}

WeightMatrix part_of(const WeightMatrix& matrix, const Part& part, Owned& owned) {
  if (is_integer(matrix.format)) {
    const auto view = view_of_integers(matrix, part);
    return view ? *view : copy_of_integers(matrix, part, owned);
  }
  if (in_blocks(matrix)) return part_of_blocks(matrix, part, owned);
  return part.kept == part.columns ? view_of_floats(matrix, part) : copy_of_floats(matrix, part, owned);
}

}  // namespace sluice::format
