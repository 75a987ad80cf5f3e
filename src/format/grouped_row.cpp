// SPDX-License-Identifier: Apache-2.0
#include "format/grouped_row.h"

#include <algorithm>
#include <array>

#include "core/bits.h"
#include "format/formats.h"
#include "format/scales.h"

namespace sluice::format {
namespace {

/// Of Q6_K.
constexpr std::size_t kMostBlockBytes = 210;

void row_of_blocks(const WeightMatrix& matrix, std::int64_t row, const GroupedRow& out) {
  const Geometry& g = sluice::geometry(matrix.format);
  const int groups = g.block_cols / g.group_cols;
  const bool minimums = has_minimums(matrix.format);
  const std::byte* block = matrix.codes + row * matrix.row_stride;
  BlockValues values;
  std::int64_t group = 0;
  for (std::int64_t first = 0; first < matrix.cols; first += g.block_cols, group += groups) {
    unpack_block(matrix.format, block, values);
    std::copy_n(values.codes.begin(), g.block_cols, out.codes + first);
    std::copy_n(values.scales.begin(), groups, out.scales + group);
    if (minimums) std::copy_n(values.minimums.begin(), groups, out.minimums + group);
    block += g.block_bytes;
  }
  std::fill_n(out.zeros, group, static_cast<std::uint8_t>(block_zero(matrix.format)));
  if (!minimums) std::fill_n(out.minimums, group, 0.0f);
}

constexpr std::uint16_t kOne = 0x3C00;  // as binary16

/// Takes the number out of a block and leaves 1, with which its scales are their factors.
std::uint16_t take_number(std::byte* at) {
  const auto number = load<std::uint16_t>(at);
  store(at, kOne);
  return number;
}

}  // namespace

bool has_grouped_rows(const WeightMatrix& matrix) {
  return is_ggml_block(matrix.format) ||
         (is_integer(matrix.format) && matrix.integers.column_groups == nullptr);
}

GroupedShape grouped_shape(const WeightMatrix& matrix) {
  const Geometry g = sluice::geometry(matrix);
  const std::int64_t columns = g.group_cols == 0 ? matrix.cols : g.group_cols;
  return {.bits = g.code_bits,
          .columns = columns,
          .groups = (matrix.cols + columns - 1) / columns,
          .minimums = is_ggml_block(matrix.format) && has_minimums(matrix.format)};
}

void grouped_row(const WeightMatrix& matrix, std::int64_t row, const GroupedRow& out) {
  if (is_ggml_block(matrix.format)) return row_of_blocks(matrix, row, out);
  codes_of_row(matrix, row, out.codes);
  zeros_of_row(matrix, row, out.zeros);
  const std::int64_t groups = groups_of_row(matrix);
  for (std::int64_t group = 0; group < groups; ++group)
    out.scales[group] = scale_at(matrix.scales, row, group);
  std::fill_n(out.minimums, groups, 0.0f);
}

void block_row(const WeightMatrix& matrix, std::int64_t row, const BlockRow& out) {
  const Geometry& g = sluice::geometry(matrix.format);
  const int groups = g.block_cols / g.group_cols;
  const BlockNumbers numbers = block_numbers(matrix.format);
  const std::byte* from = matrix.codes + row * matrix.row_stride;
  std::array<std::byte, kMostBlockBytes> block;
  BlockValues values;
  for (std::int64_t b = 0, group = 0; b * g.block_cols < matrix.cols; ++b, group += groups) {
    std::copy_n(from + b * g.block_bytes, g.block_bytes, block.begin());
    out.numbers[b] = take_number(block.data() + numbers.scale);
    const bool minimums = numbers.minimum >= 0;
    out.minimum_numbers[b] = minimums ? take_number(block.data() + numbers.minimum) : std::uint16_t{0};
    unpack_block(matrix.format, block.data(), values);
    std::copy_n(values.codes.begin(), g.block_cols, out.codes + b * g.block_cols);
    for (int i = 0; i < groups; ++i) {
      const auto at = static_cast<std::size_t>(i);
      out.factors[group + i] = static_cast<std::int8_t>(values.scales[at]);
      out.minimum_factors[group + i] =
          minimums ? static_cast<std::uint8_t>(values.minimums[at]) : std::uint8_t{0};
    }
  }
}

}  // namespace sluice::format
