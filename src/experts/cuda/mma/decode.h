// SPDX-License-Identifier: Apache-2.0
// A whole layer for few tokens in one launch, on SM90: the border between the host and the kernel.
#pragma once

#include "experts/cuda/mma/multiply.h"
#include "experts/cuda/mma/small.h"

namespace sluice::cuda {

inline constexpr int kDecodeWarps = 8, kDecodeThreads = 32 * kDecodeWarps;

/// Tokens of a tile: as many as the eight columns of a product hold, with their terms.
constexpr int decode_tokens(int terms) { return terms == 1 ? 8 : 2; }

/// Of a layer: what its launches count, zeros at first. A launch fills the card, so that its blocks are all
/// there before the first ends, and before a block of the layer's next launch, which may be in another
/// stream, begins. Blocks so tell by the number of their arrival which launch they are of, and launches take
/// turns with the two sets: a launch leaves its own as zeros, and the next but one finds it so.
struct DecodeCounters {
  unsigned long long arrivals;
  std::uint32_t ready[2][kMostDecodeSlots];  // strips of an up tile whose results are written
};

/// What a layer does. The lists of the products are not used; the kernel makes its own.
struct Decode {
  const std::int32_t* ids;         // [slots] global
  const std::int32_t* expert_map;  // [experts] -> local or -1; null: the same
  int slots, top_k, experts, local_experts;
  bool rows_are_slots;  // rows of the input are those of slots, not of tokens
  Product products[2];  // up and down
  DecodeCounters* counters;
  const float* weights;  // [slots] of the sum; null: ones
  int tokens, width;
  float* out;  // [tokens, width]
};

/// A kernel for a storage and a width, and the shared memory of its blocks. No function: there is none.
struct DecodeKernel {
  const void* function = nullptr;
  std::size_t shared = 0;
};
DecodeKernel decode_kernel(Storage storage, int k_blocks);

DecodeKernel decode_fp4_e8m0(int k_blocks);
DecodeKernel decode_fp4_e4m3(int k_blocks);
DecodeKernel decode_int4_g32(int k_blocks);
DecodeKernel decode_int4_g128(int k_blocks);

}  // namespace sluice::cuda
