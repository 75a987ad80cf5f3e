// SPDX-License-Identifier: Apache-2.0
// How rows lie in a card's memory for wgmma, which reads its B operand from shared memory: as the image of a
// tile there, so that one bulk copy brings 64 columns of all its tokens.
//
// Rows are those of positions: slots grouped by expert. A chunk is 64 columns of one term of every position,
// 128 bytes each, in the order in which weights are packed (layout.h): element 16 j + i of a row is what
// meets slot i of step j of half a block. Of the eight pieces of 16 bytes of a row piece i lies at i ^
// (position % 8), which is what wgmma calls swizzling by 128 bytes; experts begin at multiples of eight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/hd.h"
#include "experts/cuda/common/layout.h"

namespace sluice::cuda {

inline constexpr int kChunkColumns = 64, kPieceColumns = 8, kBlockPieces = kBlockColumns / kPieceColumns;
/// Experts begin at positions that are multiples of so many, the rows after which the swizzle repeats.
inline constexpr int kPositionStep = 8;

/// Who shares a scale decides which columns a lane has: groups of 32 are a lane's, or its quad's (integers).
enum class LaneOrder : std::uint8_t { groups, quads };
SLUICE_HD constexpr LaneOrder lane_order(Storage storage) {
  return is_integer(storage) ? LaneOrder::quads : LaneOrder::groups;
}

/// The first of the two neighbouring columns that are word `word`, 0 to 3, of piece `piece` of a block's 16.
SLUICE_HD constexpr int column_of(LaneOrder order, int piece, int word) {
  const int step = piece / 2, pair = 2 * (piece % 2);
  return order == LaneOrder::groups ? 32 * word + 4 * step + pair
                                    : 32 * (step / 2) + 8 * word + 4 * (step % 2) + pair;
}

struct Chunks {
  std::uint16_t* data;
  std::size_t positions;  // that a chunk has room for: tiles may be read beyond their end
  int terms, blocks;      // of 128 columns
  LaneOrder order;

  /// Elements before a piece, one of the 16 of a block.
  SLUICE_HD std::size_t at(int block, int piece, int term, std::size_t position) const {
    const auto chunk = static_cast<std::size_t>((2 * block + piece / 8) * terms + term);
    const int swizzled = piece % 8 ^ static_cast<int>(position % kPositionStep);
    return (chunk * positions + position) * kChunkColumns +
           static_cast<std::size_t>(swizzled) * kPieceColumns;
  }
  SLUICE_HD std::size_t elements() const {
    return static_cast<std::size_t>(2 * blocks * terms) * positions * kChunkColumns;
  }
};

}  // namespace sluice::cuda
