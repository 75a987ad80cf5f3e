// SPDX-License-Identifier: Apache-2.0
// Which calls are computed in one launch: for the estimates of every build, and for the code that needs CUDA.
#pragma once

#include <cstdint>

#include "experts/cuda/common/layout.h"

namespace sluice::cuda {

/// Up to so many tokens everything waits for memory, and an expert with many takes several small tiles,
/// which find its weights in L2.
inline constexpr int kFewTokens = 64;
/// What the lists of a block have room for, what their numbers hold, and the blocks of 128 columns whose
/// inputs eight warps can hold in registers.
inline constexpr int kMostDecodeSlots = 512, kMostDecodeExperts = 32767, kMostDecodeBlocks = 32;

/// An expert with many tokens has several tiles of the down product, two tokens each, and unpacks its weights
/// for every one: with four slots an expert the one launch was a quarter slower than four on an H200, with
/// two it was as fast. Calls of so few slots take it whatever the experts are.
inline constexpr int kMostSlotsOfExpert = 2, kFewSlots = 64;

struct CallSize {
  int tokens, top_k, local_experts;
};

constexpr bool is_small(const ExpertLayout& layout, const CallSize& call) {
  const Storage storage = layout.up.storage;
  const auto slots = std::int64_t{call.tokens} * call.top_k;
  return call.tokens <= kFewTokens && slots <= kMostDecodeSlots &&
         (slots <= kFewSlots || slots <= std::int64_t{kMostSlotsOfExpert} * call.local_experts) &&
         call.local_experts <= kMostDecodeExperts && value_bits(storage) == 4 &&
         layout.down.storage == storage && layout.up.k_blocks <= kMostDecodeBlocks &&
         layout.down.k_blocks <= kMostDecodeBlocks && layout.gathered == 0;
}

}  // namespace sluice::cuda
