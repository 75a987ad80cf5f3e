// SPDX-License-Identifier: Apache-2.0
// How weights lie in a card's memory: in the order in which a warp multiplies them.
//
// A strip is 16 rows, the A operand of mma.m16n8k16: eight gate rows above the up rows of the same channels,
// so that one thread ends up with both, or sixteen rows of a matrix without a partner. A block is a strip by
// 128 columns, and a strip's blocks follow each other. In a block lane 4 g + t holds rows g and g + 8 of
// columns 32 t to 32 t + 31, four of them for each step of 16: slots 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of step j
// are columns 32 t + 4 j to 32 t + 4 j + 3. So a lane sees one group of 32 a row, and its part of the B
// operand is 16 neighbouring bytes of a token's row.
//
// Of integers a quad's lanes share a group instead: its scale is applied to sums, which go over all four.
// Steps 2 i and 2 i + 1 are columns 32 i to 32 i + 31, of which lane t has the eight from 32 i + 8 t on, four
// a step. Blocks have whole groups of 32, or are of one group. Of groups of 16 the columns are packed in an
// order in which a step is one of them (column_order.h).
//
// Rows and columns beyond the matrix are zeros. Beside the blocks every row has a factor and a bias in
// float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/spec.h"

namespace sluice::cuda {

inline constexpr int kStripRows = 16, kBlockColumns = 128, kLanes = 32;
inline constexpr int kSteps = kBlockColumns / 16;  // products of m16n8k16 a block

/// How a block stores its values, and what beside them.
enum class Storage : std::uint8_t {
  fp4_e8m0,    // e2m1 in pairs of words (unpack.h); two powers of two a lane, one for each of its rows
  fp4_e4m3,    // the same; four scales a lane, two for each of its rows
  fp8_scaled,  // e4m3; a float32 for rows 0 to 7 and one for rows 8 to 15
  fp8_e8m0,    // e4m3; two powers of two a lane
  bf16,
  f16,
  int4_g32,   // codes of up to 4 bits; a float32 and a zero point for every row and 32 columns
  int4_g128,  // for every row
  int8_g32,   // codes of up to 8 bits
  int8_g128,
  q4_k,  // codes of 4 bits; for 32 columns a scale and a minimum: numbers of the row's block of GGUF, a
         // factor each; and a zero point that takes most of the minimum
  q5_k,  // the same with codes of up to 8 bits
  q6_k,  // codes of up to 8 bits, less 32; a scale for 16 columns: the number of the row, a factor each
};

constexpr bool is_integer(Storage storage) { return storage >= Storage::int4_g32; }
/// Whose scales are products of numbers and factors.
constexpr bool has_factors(Storage storage) { return storage >= Storage::q4_k; }
constexpr bool has_minimums(Storage storage) { return storage == Storage::q4_k || storage == Storage::q5_k; }

constexpr int value_bits(Storage storage) {
  switch (storage) {
    case Storage::fp4_e8m0:
    case Storage::fp4_e4m3:
    case Storage::int4_g32:
    case Storage::int4_g128:
    case Storage::q4_k:
      return 4;
    case Storage::bf16:
    case Storage::f16:
      return 16;
    default:
      return 8;
  }
}

/// Columns of a block that share an integer's scale.
constexpr int group_columns(Storage storage) {
  if (storage == Storage::q6_k) return 16;
  return storage == Storage::int4_g32 || storage == Storage::int8_g32 || has_minimums(storage)
             ? 32
             : kBlockColumns;
}

/// A lane's columns come in four pieces of eight, for two steps each: the first column of one in its block.
constexpr int first_column(Storage storage, int lane_of_quad, int piece) {
  return is_integer(storage) ? 32 * piece + 8 * lane_of_quad : 32 * lane_of_quad + 8 * piece;
}

/// Where register `index` of a lane's A operand lies in the block at a step: two neighbouring columns of a
/// row.
struct Place {
  int row, column;
};
constexpr Place place(Storage storage, int lane, int step, int index) {
  return {lane / 4 + (index % 2) * 8,
          first_column(storage, lane % 4, step / 2) + 4 * (step % 2) + 2 * (index / 2)};
}

/// Bytes of a block's values, which come first: in pieces of 16 bytes a lane.
constexpr int value_bytes(Storage storage) { return kStripRows * kBlockColumns * value_bits(storage) / 8; }

/// Bytes of the scales behind them.
constexpr int scale_bytes(Storage storage) {
  switch (storage) {
    case Storage::fp4_e8m0:
    case Storage::fp8_e8m0:
      return 2 * kLanes;
    case Storage::fp4_e4m3:
      return 4 * kLanes;
    case Storage::fp8_scaled:
      return 16;  // of which 8 are used: copies move 16
    case Storage::int4_g32:
    case Storage::int8_g32:
      return 4 * 5 * kStripRows;
    case Storage::int4_g128:
    case Storage::int8_g128:
      return 5 * kStripRows;
    case Storage::q4_k:
    case Storage::q5_k:
      return 2 * 10 * kStripRows;
    case Storage::q6_k:
      return 2 * 6 * kStripRows;
    default:
      return 0;
  }
}

/// Parts that a block's scales have: where it is more than one, each half of the columns has its own. A part
/// of integers is float32 [8][groups][2] and bytes of zero points, the same: rows g and g + 8 are neighbours.
/// Of GGUF's K quants a part is binary16 numbers [8][2], with minimums [8][2][2] of scales and minimums, and
/// bytes [8][groups][2] of the factors of scales, of those of minimums, and of zero points.
constexpr int scale_parts(Storage storage) { return group_columns(storage) <= 32 ? 2 : 1; }

/// Of q6_k, for all groups.
inline constexpr int kQ6KZero = 32;

constexpr int block_bytes(Storage storage) { return value_bytes(storage) + scale_bytes(storage); }

/// Packed columns are in another order than the matrix's, whatever its groups are.
constexpr bool has_own_order(Storage storage) { return group_columns(storage) == 16; }

/// The storage of a format that has one. Precondition: has_storage(format).
Storage storage_of(Format format, const Grouping& grouping = {});
bool has_storage(Format format);

/// One matrix, or gate and up together, of an expert. Offsets are in bytes from the expert's start.
struct StripsLayout {
  Storage storage = Storage::bf16;
  bool paired = false;  // gate and up
  int rows = 0;         // of the matrix, or of each of the two
  int strips = 0, k_blocks = 0;
  std::int64_t blocks = 0;   // [strips, k_blocks, block]
  std::int64_t factors = 0;  // float32 [strips, 16]
  std::int64_t bias = 0;     // float32 [strips, 16]

  constexpr int columns() const { return k_blocks * kBlockColumns; }
  constexpr std::int64_t strip_bytes() const { return std::int64_t{k_blocks} * block_bytes(storage); }
};

struct ExpertLayout {
  StripsLayout up, down;
  int gathered = 0;        // columns of `up` where an expert has an order of them (column_order.h); else 0
  std::int64_t order = 0;  // int32 [gathered]: the input's column, or -1 for a zero
  /// int32 [up.rows]: the channel of each of the rows of `up`, which are columns of `down`, or -1 for none.
  /// Of layers that take adapters, whose matrices have the channels as they are; 0: so has the layout.
  std::int64_t channels = 0;
  std::int64_t bytes = 0;
};

/// Columns of `up` and `down` as they are packed, which act-order may make more of.
struct PackedColumns {
  int up = 0, down = 0;  // 0: those of the spec
};

ExpertLayout expert_layout(const ExpertsSpec& spec, const PackedColumns& columns = {});

}  // namespace sluice::cuda
