// SPDX-License-Identifier: Apache-2.0
// Writes pairs: codes, scales and factors, group by group. Reads the source's rows side by side and in order,
// and writes front to back.
#include <algorithm>
#include <cstring>
#include <limits>

#include "core/bits.h"
#include "experts/cpu/common/pack.h"
#include "experts/cpu/common/transpose.h"
#include "format/fp4_blocks.h"
#include "format/geometry.h"
#include "format/scales.h"

namespace sluice::cpu {
namespace {

/// Columns c to c + 7 of a row of 4-bit codes, column c + i in bits 4i; `columns` of them exist.
std::uint32_t eight_codes(const std::byte* at, int columns) {
  if (columns >= 8) return load<std::uint32_t>(at);
  if (columns <= 0) return 0;
  std::uint32_t codes = 0;
  std::memcpy(&codes, at, static_cast<std::size_t>(columns + 1) / 2);
  return codes & ((std::uint32_t{1} << 4 * columns) - 1);
}

/// The rows of one block: lane r is row first + r of the matrix, or padding.
template <int kLanes>
struct Block {
  Block(const WeightMatrix& of, std::int64_t first_row) : matrix(of), first(first_row) {
    const std::int64_t left = of.rows - first_row;
    rows = left < 0 ? 0 : left > kLanes ? kLanes : static_cast<int>(left);
  }

  const std::byte* row(int r) const { return matrix.codes + (first + r) * matrix.row_stride; }
  /// Eight codes of a row from `column` on, of which `columns` exist, in whichever order the file has them.
  std::uint32_t eight_fp4(int r, std::int64_t column, int columns) const {
    if (matrix.blocks.columns == 0) return eight_codes(row(r) + column / 2, columns);
    if (columns <= 0) return 0;  // blocks are whole, so that there is no part of eight
    return format::eight_codes_in_blocks(matrix, geometry(matrix.format).group_cols, first + r, column);
  }
  /// Columns of the group that starts at `column`; the others are padding.
  int columns(std::int64_t column, int group) const {
    return static_cast<int>(std::min<std::int64_t>(group, matrix.cols - column));
  }

  const WeightMatrix& matrix;
  std::int64_t first;
  int rows;
  bool nan[kLanes] = {};  // the row has a code or scale that is NaN
  bool marked = false;    // a code is a bf16 other than 0 and the normal numbers
};

bool is_nan_e4m3(std::uint8_t code) { return (code & 0x7F) == 0x7F; }

template <int kLanes>
void pack_fp4(const Block<kLanes>& block, std::int64_t column, int group, std::byte* out) {
  const int columns = block.columns(column, group);
  for (int c = 0; c < group; c += 8, out += 4 * kLanes)
    for (int r = 0; r < kLanes; ++r)
      store(out + 4 * r, r < block.rows ? block.eight_fp4(r, column + c, columns - c) : 0);
}

/// Whole elements, column by column.
template <class Element, int kLanes>
void pack_elements(const Block<kLanes>& block, std::int64_t column, int group, std::byte* out) {
  const int columns = block.columns(column, group);
  const std::ptrdiff_t stride = block.matrix.col_stride;
  std::memset(out, 0, sizeof(Element) * group * kLanes);
  for (int r = 0; r < block.rows; ++r) {
    const std::byte* at = block.row(r) + column * stride;
    std::byte* to = out + sizeof(Element) * r;
    for (int c = 0; c < columns; ++c)
      store(to + sizeof(Element) * kLanes * c, load<Element>(at + c * stride));
  }
}

/// Pairs of columns share a dword.
template <int kLanes>
void pack_bf16(const Block<kLanes>& block, std::int64_t column, int group, std::byte* out) {
  const int columns = block.columns(column, group);
  const std::ptrdiff_t stride = block.matrix.col_stride;
  std::memset(out, 0, 2 * static_cast<std::size_t>(group) * kLanes);
  for (int r = 0; r < block.rows; ++r) {
    const std::byte* at = block.row(r) + column * stride;
    for (int c = 0; c < columns; ++c)
      store(out + 4 * (c / 2 * kLanes + r) + 2 * (c % 2), load<std::uint16_t>(at + c * stride));
  }
}

/// Whether packed bf16 have a subnormal number, an infinity or a NaN.
template <int kLanes>
void note_marks(Block<kLanes>& block, const std::byte* out, int columns) {
  bool marked = false;
  for (int i = 0; i < columns * kLanes; ++i) {
    const unsigned magnitude = load<std::uint16_t>(out + 2 * i) & 0x7FFFu;
    marked |= magnitude - 1 < 0x7Fu || magnitude >= 0x7F80u;
  }
  block.marked |= marked;
}

/// Bytes of a row that `group` columns take in the file.
int row_bytes(const Layout& layout, int group) { return group * layout.code_bits / 8; }

/// The block is whole, its rows are dense, and what is side by side in a row stays so in 1, 2 or 4 bytes.
template <int kLanes>
bool can_turn(const Layout& layout, const Block<kLanes>& block, std::int64_t column) {
  const WeightMatrix& matrix = block.matrix;
  const bool dense =
      layout.code_bits < 8 ? matrix.blocks.columns == 0 : matrix.col_stride == layout.code_bits / 8;
  return dense && block.rows == kLanes && column + layout.group <= matrix.cols &&
         (row_bytes(layout, layout.group) % kTurnedBytes == 0 || layout.codes == Codes::fp4);
}

template <class Element, int kLanes>
void turn_group(const Layout& layout, const Block<kLanes>& block, std::int64_t column, std::byte* out) {
  const std::byte* const first = block.row(0) + column * layout.code_bits / 8;
  const int bytes = row_bytes(layout, layout.group);
  int at = 0;
  for (; at + kTurnedBytes <= bytes; at += kTurnedBytes)
    turn<Element, kLanes>(first + at, block.matrix.row_stride, out + at * kLanes);
  for (; at < bytes; at += sizeof(Element))  // half of that, in groups of NVFP4
    for (int r = 0; r < kLanes; ++r)
      store(out + at * kLanes + r * sizeof(Element),
            load<Element>(block.row(r) + column * layout.code_bits / 8 + at));
}

/// Which rows of packed e4m3 have a NaN, 8 of them in a word: 0x7F in the lower bits of a byte is one, and
/// the only value that one more carries into the highest bit.
template <int kLanes>
void note_nans(Block<kLanes>& block, const std::byte* out, int columns) {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  std::uint64_t seen[kLanes / 8] = {};
  for (int c = 0; c < columns; ++c)
    for (int w = 0; w < kLanes / 8; ++w)
      seen[w] |= (load<std::uint64_t>(out + c * kLanes + 8 * w) & 0x7F * kOnes) + kOnes;
  for (int r = 0; r < kLanes; ++r) block.nan[r] |= (seen[r / 8] >> (8 * (r % 8) + 7) & 1) != 0;
}

template <int kLanes>
void turn_codes(const Layout& layout, Block<kLanes>& block, std::int64_t column, std::byte* out) {
  switch (layout.codes) {
    case Codes::fp4:
    case Codes::f32:
      return turn_group<std::uint32_t>(layout, block, column, out);
    case Codes::bf16:
      turn_group<std::uint32_t>(layout, block, column, out);  // two columns
      return note_marks(block, out, layout.group);
    case Codes::f16:
      return turn_group<std::uint16_t>(layout, block, column, out);
    case Codes::e4m3:
      turn_group<std::uint8_t>(layout, block, column, out);
      return note_nans(block, out, layout.group);
  }
}

template <int kLanes>
void pack_codes(const Layout& layout, Block<kLanes>& block, std::int64_t column, std::byte* out) {
  if (can_turn(layout, block, column)) return turn_codes(layout, block, column, out);
  switch (layout.codes) {
    case Codes::fp4:
      return pack_fp4(block, column, layout.group, out);
    case Codes::e4m3:
      pack_elements<std::uint8_t>(block, column, layout.group, out);
      return note_nans(block, out, layout.group);
    case Codes::f16:
      return pack_elements<std::uint16_t>(block, column, layout.group, out);
    case Codes::bf16:
      pack_bf16(block, column, layout.group, out);
      return note_marks(block, out, layout.group);
    case Codes::f32:
      return pack_elements<std::uint32_t>(block, column, layout.group, out);
  }
}

template <int kLanes>
void pack_scales(const Layout& layout, Block<kLanes>& block, int group, std::byte* out) {
  const ScalesView& scales = block.matrix.scales;
  if (layout.scales == Scales::byte_each_row) {
    const bool e4m3 = scales.dtype == DType::f8_e4m3;
    for (int r = 0; r < kLanes; ++r) {
      const std::uint8_t code =
          r < block.rows
              ? load<std::uint8_t>(format::fp4_scale(block.matrix, layout.group, block.first + r, group))
              : 0;
      block.nan[r] |= e4m3 ? is_nan_e4m3(code) : code == 0xFF;
      store(out + r, code);
    }
  } else if (layout.scales == Scales::float_each_block) {
    const int tile = geometry(block.matrix.format).group_rows;
    store(out, block.rows == 0 ? 1.0f : format::scale_at(scales, block.first / tile, group));
  }
}

template <int kLanes>
void pack_factors(const Layout& layout, const Block<kLanes>& block, std::byte* out) {
  if (!layout.factors) return;
  const WeightMatrix& matrix = block.matrix;
  const format::Geometry& shape = geometry(matrix.format);
  for (int r = 0; r < kLanes; ++r) {
    float factor = matrix.second_scale;
    if (layout.scales == Scales::none && r < block.rows)
      factor *= format::scale_at(matrix.scales,
                                 shape.group_rows == 0 ? 0 : (block.first + r) / shape.group_rows, 0);
    store(out + sizeof(float) * r, block.nan[r] ? std::numeric_limits<float>::quiet_NaN() : factor);
  }
}

/// Where factors are in other layouts; block 0 comes first.
template <int kLanes>
void pack_mark(const Block<kLanes>& block, int b, std::byte* out) {
  const std::int32_t before = b == 0 ? 0 : load<std::int32_t>(out);
  store(out, before | static_cast<std::int32_t>(block.marked));
}

template <int kLanes>
void pack_all(const Stream& stream, const PairSource& source, PairRange range, std::byte* pairs) {
  const Layout& layout = stream.format.layout;
  const std::size_t used = layout.used_bytes(kLanes, stream.columns);
  for (int p = range.first; p < range.last; ++p) {
    std::memset(pairs + p * stream.pair_bytes + used, 0, stream.pair_bytes - used);
    for (int b = 0; b < 2; ++b) {
      const std::int64_t index = stream.pairing == Pairing::gate_with_up ? p : 2 * p + b;
      Block<kLanes> block(*source.block[b], index * kLanes);
      std::byte* pair = pairs + p * stream.pair_bytes;
      std::byte* out = pair + b * layout.block_bytes(kLanes);
      for (int g = 0; g < stream.groups(); ++g, out += layout.group_bytes(kLanes)) {
        pack_codes(layout, block, std::int64_t{g} * layout.group, out);
        pack_scales(layout, block, g, out + layout.code_bytes(kLanes));
      }
      std::byte* const end = pair + layout.factors_offset(kLanes, stream.columns);
      if (layout.mark) pack_mark(block, b, end);
      pack_factors(layout, block, end + b * kLanes * sizeof(float));
    }
  }
}

}  // namespace

void pack_pairs(const Stream& stream, int lanes, const PairSource& source, PairRange range,
                std::byte* pairs) {
  if (lanes == 16) return pack_all<16>(stream, source, range, pairs);
  pack_all<8>(stream, source, range, pairs);
}

}  // namespace sluice::cpu
