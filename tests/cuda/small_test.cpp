// SPDX-License-Identifier: Apache-2.0
// What a tile of the down product waits for in the one launch: the up tiles of all of its positions. Tiles of
// two, six or eight tokens above tiles of three or four end apart; waiting for the first alone read an
// intermediate that was not there. And which calls take it.
#include <gtest/gtest.h>

#include <vector>

#include "experts/cuda/mma/small.h"

namespace sluice::cuda {
namespace {

std::uint16_t narrow(int number) { return static_cast<std::uint16_t>(number); }

/// The tiles of an expert's positions, which begin at `first`; `ups`: tiles of the up product before them.
std::vector<SmallTile> tiles_of(int first, int count, int most, int ups, int up_most) {
  std::vector<SmallTile> tiles;
  for (int rank = 0; rank < count; rank += most)
    tiles.push_back(
        {0, narrow(first + rank), narrow(std::min(most, count - rank)), narrow(ups + rank / up_most)});
  return tiles;
}

TEST(SmallTiles, HaveTheUpTilesOfAllTheirPositions) {
  for (int up_most = 1; up_most <= 8; ++up_most)
    for (int most = 1; most <= 4; ++most)
      for (int count = 1; count <= 64; ++count) {
        constexpr int kFirst = 5;
        std::vector<SmallTile> ups = {{0, 0, kFirst, 0}};  // another expert's
        for (const SmallTile& tile : tiles_of(kFirst, count, up_most, 1, up_most)) ups.push_back(tile);
        for (const SmallTile& down : tiles_of(kFirst, count, most, 1, up_most)) {
          const int last = last_source(ups.data(), down);
          std::vector<bool> there(kFirst + 64);
          for (int tile = down.source; tile <= last; ++tile)
            for (int i = 0; i < ups[static_cast<std::size_t>(tile)].count; ++i)
              there[static_cast<std::size_t>(ups[static_cast<std::size_t>(tile)].first + i)] = true;
          for (int i = down.first; i < down.first + down.count; ++i)
            EXPECT_TRUE(there[static_cast<std::size_t>(i)]) << up_most << ", " << most << ", " << count;
          EXPECT_LT(ups[static_cast<std::size_t>(last)].first, down.first + down.count);  // and no more
        }
      }
}

/// mixtral-8x7b, whose down product has 112 blocks a row.
bool mixtral_is_small(Storage storage, int tokens) {
  ExpertLayout layout;
  layout.up = {.storage = storage, .paired = true, .rows = 14336, .strips = 1792, .k_blocks = 32};
  layout.down = {.storage = storage, .rows = 4096, .strips = 256, .k_blocks = 112};
  return is_small(layout, {.tokens = tokens, .top_k = 2, .local_experts = 8});
}

TEST(SmallCalls, RowsInPartsUpToTheSlotsWhereTheyAreAhead) {
  EXPECT_EQ(down_parts(kMostStripBlocks), 1);
  EXPECT_GE(down_parts(112) * part_blocks(112, down_parts(112)), 112);
  EXPECT_LE(part_blocks(112, down_parts(112)), kPartBlocks);
  for (const int tokens : {1, 2, 4, 8, 16})
    EXPECT_TRUE(mixtral_is_small(Storage::fp4_e8m0, tokens)) << tokens;
  EXPECT_FALSE(mixtral_is_small(Storage::fp4_e8m0, 32));
  for (const int tokens : {1, 2, 4}) EXPECT_TRUE(mixtral_is_small(Storage::fp8_scaled, tokens)) << tokens;
  EXPECT_FALSE(mixtral_is_small(Storage::fp8_scaled, 8));
}

}  // namespace
}  // namespace sluice::cuda
