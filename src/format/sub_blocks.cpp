// SPDX-License-Identifier: Apache-2.0
// Rows of a part are whole rows of blocks. Columns of integer blocks are whole blocks, since the reach of a
// slice ends with them; columns of other ranks get the code of zero. 4-bit floats in blocks are copied into
// the order of safetensors where a part is not whole blocks.
#include "format/sub_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/bits.h"
#include "core/error.h"
#include "format/formats.h"
#include "format/fp4_blocks.h"
#include "format/ggml_blocks.h"

namespace sluice::format {
namespace {

BlockLayout layout_of(const WeightMatrix& matrix) {
  if (matrix.blocks.columns != 0) return matrix.blocks;
  const Geometry shape = sluice::geometry(matrix.format);
  return {.columns = shape.block_cols, .bytes = shape.block_bytes};
}

WeightMatrix view(const WeightMatrix& matrix, const Part& part) {
  const BlockLayout layout = layout_of(matrix);
  const std::int64_t skipped = part.columns.first / layout.columns * layout.bytes;
  WeightMatrix made = matrix;
  made.rows = part.rows.size();
  made.cols = part.columns.size();
  made.codes += part.rows.first * matrix.row_stride + skipped;
  if (made.scales.data != nullptr) made.scales.data += part.rows.first * matrix.scales.row_stride + skipped;
  return made;
}

// ---- 4-bit floats

WeightMatrix flat_copy(const WeightMatrix& matrix, const Part& part, Owned& owned) {
  const int group_cols = sluice::geometry(matrix.format).group_cols;
  const std::int64_t columns = part.columns.size(), groups = (columns + group_cols - 1) / group_cols;
  const std::int64_t row_bytes = columns / 2;
  auto bytes = std::make_shared<std::vector<std::byte>>(
      static_cast<std::size_t>(part.rows.size() * (row_bytes + groups)));
  std::byte* const scales = bytes->data() + part.rows.size() * row_bytes;
  for (std::int64_t r = 0; r < part.rows.size(); ++r) {
    const std::int64_t row = part.rows.first + r;
    for (std::int64_t c = 0; c < columns; c += 8) {
      std::uint32_t codes = eight_codes_in_blocks(matrix, group_cols, row, part.columns.first + c);
      for (int i = 0; i < 8; ++i) {
        const std::int64_t column = part.columns.first + c + i;
        if (column < part.kept.first || column >= part.kept.last) codes &= ~(15u << 4 * i);
      }
      store(bytes->data() + r * row_bytes + c / 2, codes);
    }
    for (std::int64_t g = 0; g < groups; ++g)
      scales[r * groups + g] = *fp4_scale(matrix, group_cols, row, part.columns.first / group_cols + g);
  }
  WeightMatrix made = matrix;
  made.rows = part.rows.size();
  made.cols = columns;
  made.codes = bytes->data();
  made.row_stride = row_bytes;
  made.col_stride = 0;
  made.scales = {scales, matrix.scales.dtype, groups, 1};
  made.blocks = {};
  owned.push_back(std::move(bytes));
  return made;
}

// ---- integers

void set_bits(std::byte& at, unsigned mask, unsigned value) {
  at = (at & ~std::byte(mask)) | std::byte(value);
}

/// The code of a column of a block becomes the format's zero.
void put_zero(Format format, std::byte* block, int c) {
  const auto nibble = [&](std::byte* nibbles, int at, bool high) {
    set_bits(nibbles[at], high ? 0xF0u : 0x0Fu, 0);
  };
  if (format == Formats::of<Q4_0>())
    return set_bits(block[2 + c % 16], c < 16 ? 0x0Fu : 0xF0u, c < 16 ? 0x08u : 0x80u);
  if (format == Formats::of<Q8_0>()) {
    block[2 + c] = std::byte{0};
    return;
  }
  if (format == Formats::of<Q6K>()) {
    const int half = c / 128, quarter = c % 128 / 32, i = c % 32;
    nibble(block, 64 * half + 32 * (quarter % 2) + i, quarter >= 2);
    return set_bits(block[128 + 32 * half + i], 3u << 2 * quarter, 2u << 2 * quarter);
  }
  const bool five = format == Formats::of<Q5K>();
  nibble(block + (five ? 48 : 16), c / 64 * 32 + c % 32, c % 64 >= 32);
  if (five) set_bits(block[16 + c % 32], 1u << c / 32, 0);
}

/// Minimum and scale of a group of Q4_K or Q5_K become zero.
void clear_group(std::byte* block, int group) {
  std::byte* const packed = block + 4;
  if (group < 4) {
    set_bits(packed[group], 63u, 0);
    return set_bits(packed[group + 4], 63u, 0);
  }
  packed[group + 4] = std::byte{0};
  set_bits(packed[group - 4], 0xC0u, 0);
  set_bits(packed[group], 0xC0u, 0);
}

[[noreturn]] void refuse(const WeightMatrix& matrix, std::int64_t column) {
  fail(ErrorKind::unsupported,
       {.code = "slice_in_group",
        .what = fmt::format("a slice of a {} matrix ends within the group of 32 columns that has column {}",
                            matrix.format.str(), column),
        .why = "the group has a minimum, so no code of it is zero for the columns of another rank",
        .todo = "Cut the intermediate width at multiples of 32"});
}

/// Columns [first, last) of a block are another rank's.
void clear_columns(const WeightMatrix& matrix, std::byte* block, Run columns, std::int64_t block_column) {
  const bool minimums = has_minimums(matrix.format);
  const int group_cols = sluice::geometry(matrix.format).group_cols;
  BlockValues values;
  unpack_block(matrix.format, block, values);
  for (auto c = static_cast<int>(columns.first); c < columns.last; ++c) {
    const int group = c / group_cols;
    const bool whole = group * group_cols >= columns.first && (group + 1) * group_cols <= columns.last;
    if (minimums && whole) clear_group(block, group);
    if (minimums && !whole && values.minimums[static_cast<std::size_t>(group)] != 0)
      refuse(matrix, block_column + c);
    put_zero(matrix.format, block, c);
  }
}

WeightMatrix zeroed_copy(const WeightMatrix& matrix, const Part& part, Owned& owned) {
  WeightMatrix made = view(matrix, part);
  const BlockLayout layout = layout_of(matrix);
  const std::int64_t blocks = made.cols / layout.columns, row_bytes = blocks * layout.bytes;
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(made.rows * row_bytes));
  for (std::int64_t r = 0; r < made.rows; ++r) {
    std::byte* const row = bytes->data() + r * row_bytes;
    std::memcpy(row, made.codes + r * made.row_stride, static_cast<std::size_t>(row_bytes));
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t start = part.columns.first + b * layout.columns, columns = layout.columns;
      const std::int64_t kept_first = std::clamp<std::int64_t>(part.kept.first - start, 0, columns);
      const std::int64_t kept_last = std::clamp<std::int64_t>(part.kept.last - start, kept_first, columns);
      if (kept_first > 0) clear_columns(matrix, row + b * layout.bytes, {0, kept_first}, start);
      if (kept_last < columns) clear_columns(matrix, row + b * layout.bytes, {kept_last, columns}, start);
    }
  }
  made.codes = bytes->data();
  made.row_stride = row_bytes;
  owned.push_back(std::move(bytes));
  return made;
}

}  // namespace

bool in_blocks(const WeightMatrix& matrix) { return layout_of(matrix).columns != 0; }

WeightMatrix part_of_blocks(const WeightMatrix& matrix, const Part& part, Owned& owned) {
  const int columns = layout_of(matrix).columns;
  const bool whole_blocks = part.columns.first % columns == 0 && part.columns.last % columns == 0;
  if (whole_blocks && part.kept == part.columns) return view(matrix, part);
  return matrix.blocks.columns != 0 ? flat_copy(matrix, part, owned) : zeroed_copy(matrix, part, owned);
}

}  // namespace sluice::format
