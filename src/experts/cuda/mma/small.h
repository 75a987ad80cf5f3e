// SPDX-License-Identifier: Apache-2.0
// Which calls are computed in one launch: for the estimates of every build, and for the code that needs CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/hd.h"
#include "experts/cuda/common/layout.h"
#include "experts/cuda/common/terms.h"

namespace sluice::cuda {

/// Up to so many tokens everything waits for memory, and an expert with many takes several small tiles,
/// which find its weights in L2.
inline constexpr int kFewTokens = 64;
/// What the lists of a block have room for, and what their numbers hold.
inline constexpr int kMostDecodeSlots = 512, kMostDecodeExperts = 32767;

/// Two kernels compute a layer in one launch. Of one eight warps split a strip along K and hold its inputs in
/// registers, which is soonest through with few strips; it takes 4 bits and so many blocks of 128 columns.
inline constexpr int kMostSliceBlocks = 32;
constexpr bool takes_slices(const ExpertLayout& layout) {
  return value_bits(layout.up.storage) == 4 &&
         std::max(layout.up.k_blocks, layout.down.k_blocks) <= kMostSliceBlocks;
}

/// Of the other a warp has whole strips of up to 8 bits, but for K quants. It is ahead from so many slots on
/// (gpt-oss-120b in MXFP4, one H200, us at 4, 16 and 64 slots: 30, 74 and 214 by slices, 46, 83 and 206 by
/// strips; qwen3-235b at 64: 175 and 160), and ahead of four launches, which take what is neither, from so
/// few (8 bits in groups of 128 at 4, 16 and 64 slots: 55, 123 and 351 for 45, 141 and 396).
inline constexpr int kStripSlots = 64, kFewestStripSlots = 16;
/// Or from so many strips of both products on (deepseek-v4-flash in FP8 at 2 tokens, 6144 strips: 118 us
/// for 132; gpt-oss-120b in 8 bits at 3 tokens, 6480: 102 for 117).
inline constexpr int kFewestStrips = 6000;
constexpr bool has_strips_kernel(Storage storage) {
  return value_bits(storage) < 16 && !has_factors(storage);
}

/// Shared memory for the inputs of a tile in the kernel for whole strips, of which a block has two.
inline constexpr int kStripInputBytes = 53 * 1024;
/// What a row of inputs takes there: rows begin 64 bytes after a multiple of 128, so that the 64 bytes that
/// each of two rows gives to eight lanes lie in all banks.
constexpr int input_row_bytes(int k_blocks) { return k_blocks * 2 * kBlockColumns + 64; }
/// A token of three terms fits.
inline constexpr int kMostStripBlocks = (kStripInputBytes / kMostTerms - 64) / (2 * kBlockColumns);

/// Longer rows of the down product are cut into parts that are summed in order at the end, as if a slot had
/// so many experts: of so many blocks that four tokens fit.
inline constexpr int kPartBlocks = (kStripInputBytes / (4 * kMostTerms) - 64) / (2 * kBlockColumns);
constexpr int down_parts(int k_blocks) {
  return k_blocks <= kMostStripBlocks ? 1 : (k_blocks + kPartBlocks - 1) / kPartBlocks;
}
/// Of a part; the last may have fewer.
constexpr int part_blocks(int k_blocks, int parts) { return (k_blocks + parts - 1) / parts; }

/// An expert with many tokens has several tiles of the down product, of two to four tokens, and unpacks its
/// weights for every one. With four slots an expert the one launch was still ahead of four (qwen3-235b at 64
/// tokens on one H200, us: 486 for 525 in MXFP4, 486 for 516 in INT4). Calls of so few slots take it whatever
/// the experts are.
inline constexpr int kMostSlotsOfExpert = 4, kFewSlots = 64;

/// Rows in parts have a tile's fixed costs several times, and lose their lead sooner (mixtral-8x7b at 4, 16
/// and 32 tokens, us: 166, 283 and 469 for 203, 290 and 450 in MXFP4, 312, 516 and 851 for 319, 437 and 546
/// in FP8).
constexpr bool has_few_slots(const ExpertLayout& layout, std::int64_t slots, int local_experts) {
  if (down_parts(layout.down.k_blocks) > 1)
    return slots <= std::int64_t{value_bits(layout.up.storage) == 4 ? kMostSlotsOfExpert : 1} * local_experts;
  return slots <= kFewSlots || slots <= std::int64_t{kMostSlotsOfExpert} * local_experts;
}

/// Neighbouring positions of one expert, which a product computes together.
struct SmallTile {
  std::uint16_t expert, first, count;
  std::uint16_t source;  // of a down tile: the up tile that its first position's input comes from
};

/// The up tile that the input of a down tile's last position comes from: tiles of the two products need not
/// end together, and one of the down product may begin in an up tile and end in the next but one.
SLUICE_HD constexpr int last_source(const SmallTile* up_tiles, const SmallTile& down) {
  int tile = down.source;
  while (up_tiles[tile].first + up_tiles[tile].count < down.first + down.count) ++tile;
  return tile;
}

struct CallSize {
  int tokens, top_k, local_experts;
};

constexpr bool has_enough_strips(const ExpertLayout& layout, std::int64_t slots) {
  return slots >= kFewestStripSlots ||
         slots * (layout.up.strips + down_parts(layout.down.k_blocks) * layout.down.strips) >= kFewestStrips;
}

constexpr bool is_small(const ExpertLayout& layout, const CallSize& call) {
  const Storage storage = layout.up.storage;
  const auto slots = std::int64_t{call.tokens} * call.top_k;
  return call.tokens <= kFewTokens && slots <= kMostDecodeSlots &&
         has_few_slots(layout, slots, call.local_experts) &&
         (takes_slices(layout) || has_enough_strips(layout, slots)) &&
         call.local_experts <= kMostDecodeExperts && has_strips_kernel(storage) &&
         layout.down.storage == storage && layout.up.k_blocks <= kMostStripBlocks && layout.gathered == 0;
}

}  // namespace sluice::cuda
