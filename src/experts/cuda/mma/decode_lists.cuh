// SPDX-License-Identifier: Apache-2.0
// From ids to tiles, in every block for itself: at most 512 slots are cheaper to group again than to wait
// for.
#pragma once

#include <cuda_runtime.h>

#include "experts/cuda/mma/decode.h"
#include "experts/cuda/mma/ptx.cuh"

namespace sluice::cuda {

/// Of shared memory.
struct DecodeLists {
  std::int16_t local[kMostDecodeSlots];  // of a slot
  std::int16_t slots[kMostDecodeSlots];  // position -> slot, by expert, ascending
  SmallTile tiles[2][kMostDecodeSlots];  // of the up and of the down product
  int counts[2];
};

/// Room that is only needed while the lists are made: expert and slot in one number, of slots and of
/// positions.
struct DecodeScratch {
  alignas(16) int keys[kMostDecodeSlots];
  int sorted[kMostDecodeSlots];
  int used;
};
/// Of a slot without an expert here: behind all others.
inline constexpr int kNoKey = 0x7FFFFFFF;

__device__ inline int local_of(const Decode& d, int slot) {
  return local_expert(d.ids[slot], d.expert_map, d.experts, d.local_experts);
}

/// How many keys are smaller, which is where a key belongs.
__device__ inline int place_of_key(const DecodeScratch& scratch, int key, int keys) {
  int smaller = 0;
  for (int i = 0; i < keys; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(scratch.keys + i);
    smaller +=
        (four.x < key ? 1 : 0) + (four.y < key ? 1 : 0) + (four.z < key ? 1 : 0) + (four.w < key ? 1 : 0);
  }
  return smaller;
}

/// Cuts the first `used` positions into tiles. One warp. A tile of a product has as many tokens as it and
/// `tokens_of` say.
template <class TokensOf>
__device__ void cut(const Decode& d, const TokensOf& tokens_of, int product, int used, DecodeLists& lists,
                    const DecodeScratch& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int up_most = tokens_of(d.products[0]), most = tokens_of(d.products[product]);
  const unsigned through = ~0u >> (31 - lane);
  SmallTile* const tiles = lists.tiles[product];
  int count = 0, up_count = 0, start = 0;  // start: the expert's first position
  for (int first = 0; first < used; first += 32) {
    const int position = first + lane;
    const bool there = position < used;
    const int expert = there ? scratch.sorted[position] >> 16 : -1;
    const bool head = there && (position == 0 || scratch.sorted[position - 1] >> 16 != expert);
    const unsigned heads = __ballot_sync(~0u, head) & through;
    if (heads != 0) start = first + 31 - __clz(static_cast<int>(heads));
    const int rank = position - start;
    const unsigned begins = __ballot_sync(~0u, there && rank % most == 0);
    const unsigned ups = __ballot_sync(~0u, there && rank % up_most == 0);
    if (begins >> lane & 1)
      tiles[count + __popc(begins & through) - 1] = {
          static_cast<std::uint16_t>(expert), static_cast<std::uint16_t>(position), 0,
          static_cast<std::uint16_t>(up_count + __popc(ups & through) - 1)};
    count += __popc(begins);
    up_count += __popc(ups);
    start = __shfl_sync(~0u, start, 31);
  }
  __syncwarp();
  for (int tile = lane; tile < count; tile += 32)
    tiles[tile].count =
        static_cast<std::uint16_t>((tile + 1 < count ? tiles[tile + 1].first : used) - tiles[tile].first);
  if (lane == 0) lists.counts[product] = count;
}

/// All threads of a block of at least two warps.
template <class TokensOf>
__device__ void make_lists(const Decode& d, const TokensOf& tokens_of, DecodeLists& lists,
                           DecodeScratch& scratch) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int keys = (d.slots + 3) / 4 * 4;  // what is beyond the slots is behind all of them
  if (thread == 0) scratch.used = 0;
  for (int slot = thread; slot < keys; slot += threads) {
    const int local = slot < d.slots ? local_of(d, slot) : -1;
    scratch.keys[slot] = local < 0 ? kNoKey : local << 16 | slot;
    lists.local[slot] = static_cast<std::int16_t>(local);
  }
  __syncthreads();
  for (int slot = thread; slot < d.slots; slot += threads) {
    const int key = scratch.keys[slot];
    if (key == kNoKey) continue;
    const int position = place_of_key(scratch, key, keys);
    scratch.sorted[position] = key;
    lists.slots[position] = static_cast<std::int16_t>(slot);
    atomicAdd(&scratch.used, 1);
  }
  __syncthreads();
  if (thread < 2 * 32) cut(d, tokens_of, thread / 32, scratch.used, lists, scratch);
  __syncthreads();
}

}  // namespace sluice::cuda
