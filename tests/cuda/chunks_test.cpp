// SPDX-License-Identifier: Apache-2.0
// Where rows lie for warpgroup products: every column once, where the weights' order has it, and every piece
// in the swizzle that the card undoes.
#include "experts/cuda/mma/chunks.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace sluice::cuda {
namespace {

constexpr Storage kStorages[] = {Storage::fp4_e8m0, Storage::fp8_scaled, Storage::int4_g32,
                                 Storage::int8_g128};

TEST(Chunks, AStepMeetsTheColumnsThatItsWeightsHave) {
  for (const Storage storage : kStorages) {
    std::set<int> columns;
    for (int step = 0; step < kSteps; ++step)
      for (int lane = 0; lane < 4; ++lane)
        for (int index = 0; index < 4; index += 2) {
          const Place place_of_weight = place(storage, lane, step, index);
          // Slots 2 t and 2 t + 1 of a step are words of its first piece, 2 t + 8 and 2 t + 9 of its second.
          const int column = column_of(lane_order(storage), 2 * step + index / 2, lane);
          EXPECT_EQ(column, place_of_weight.column) << "step " << step << ", lane " << lane << ", " << index;
          columns.insert({column, column + 1});
        }
    EXPECT_EQ(columns.size(), std::size_t{kBlockColumns});
    EXPECT_EQ(*columns.rbegin(), kBlockColumns - 1);
  }
}

TEST(Chunks, EveryPieceHasAPlaceOfItsOwnAndIsSwizzledInItsRow) {
  const Chunks chunks{.data = nullptr, .positions = 24, .terms = 3, .blocks = 2, .order = LaneOrder::groups};
  std::vector<int> taken(chunks.elements() / kPieceColumns);
  for (int block = 0; block < chunks.blocks; ++block)
    for (int piece = 0; piece < kBlockPieces; ++piece)
      for (int term = 0; term < chunks.terms; ++term)
        for (std::size_t position = 0; position < chunks.positions; ++position) {
          const std::size_t at = chunks.at(block, piece, term, position);
          ASSERT_EQ(at % kPieceColumns, 0u);
          ASSERT_LT(at / kPieceColumns, taken.size());
          ++taken[at / kPieceColumns];
          // A tile's rows of a chunk are one run of bytes, 128 each, and bits 4 to 6 are xored with bits 7
          // to 9.
          const std::size_t row = chunks.at(block, piece / 8 * 8, term, position / 8 * 8) / kChunkColumns;
          EXPECT_EQ(at / kChunkColumns, row + position % 8);
          EXPECT_EQ(at % kChunkColumns / kPieceColumns, static_cast<std::size_t>(piece) % 8 ^ position % 8);
        }
  for (const int count : taken) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace sluice::cuda
