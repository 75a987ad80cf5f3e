// SPDX-License-Identifier: Apache-2.0
// A whole layer in one launch, for few tokens, which waits for memory from its first microsecond to its last.
//
// All blocks of the grid are on the card at once. Each groups the slots for itself, and then takes its share
// of the strips of the gate and up product, of those of the down product as soon as a tile's intermediate is
// there, which others write that are about as far, and of the sums of tokens after a barrier of the grid. The
// eight warps of a block split a strip along K: a warp has the same blocks of every strip, so its part of the
// inputs stays in registers as long as the tile does, and nothing but weights moves. They come by bulk
// copies, a strip's slice each, into a ring that only this warp uses and that runs ahead into the down
// product before its inputs are there. Parts of a strip's sums meet in shared memory, where a warp in turn
// adds them, in the order of the warps, and finishes the strip, two strips later, so that warps hardly ever
// wait for each other.
//
// grid: as many blocks as the card holds    block: kDecodeThreads    shared: DecodeShared
#pragma once

#include <cooperative_groups.h>

#include "experts/cuda/mma/decode_ends.cuh"
#include "experts/cuda/mma/epilogue.cuh"
#include "experts/cuda/mma/slice_ring.cuh"

namespace sluice::cuda {

/// A warp's part of a tile's inputs: eight columns, of tokens and their terms. Several terms lie in the order
/// in which integers have their columns anyway.
template <Storage kStorage, int kSlice>
struct SliceInputs {
  Columns of[kSlice][kHalves];

  __device__ void load(const Decode& d, const Product& p, const DecodeLists& lists, const SmallTile& tile,
                       const Slice& slice) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
    const bool one = p.input.terms == 1, together = one && !is_integer(kStorage);
    const int token = one ? g : g / kMostTerms, term = one ? 0 : g % kMostTerms;
    const bool there = token < tile.count;
    const int position = tile.first + (there ? token : 0);
    const int slot = lists.slots[position];
    const int row = p.down ? position : d.rows_are_slots ? slot : slot / d.top_k;
    const std::uint16_t* from = p.input.data + static_cast<std::size_t>(row) * p.input.stride +
                                static_cast<std::size_t>(term) * p.input.plane + slice.first * kBlockColumns +
                                t * (together ? 32 : kPlaceOfLane);
    const int piece = together ? 8 : kPlaceOfPiece;         // elements between two in memory
    constexpr int kColumns = first_column(kStorage, 0, 1);  // and in the row
    const int left = p.input.columns - slice.first * kBlockColumns - first_column(kStorage, t, 0);
#pragma unroll
    for (int b = 0; b < kSlice; ++b)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint16_t* at = from + b * kBlockColumns + (2 * half + i) * piece;
          const bool inside =
              there && b < slice.count && left > b * kBlockColumns + kColumns * (2 * half + i);
          of[b][half].of[i] = inside ? __ldcg(reinterpret_cast<const uint4*>(at)) : uint4{0, 0, 0, 0};
        }
  }
};

template <Storage kStorage>
__device__ void multiply_block(const std::byte* block, const Columns (&in)[kHalves], float (&sums)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  uint4 values[kHalves * half_pieces(kStorage)];
#pragma unroll
  for (int i = 0; i < kHalves * half_pieces(kStorage); ++i)
    values[i] = *reinterpret_cast<const uint4*>(block + i * 512 + lane * 16);
  constexpr int kParts = scale_parts(kStorage);
  Scales<kStorage> scales[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    scales[part] =
        load_scales<kStorage>(block + value_bytes(kStorage) + part * (scale_bytes(kStorage) / kParts), lane);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const Scales<kStorage>& own = scales[kParts == 1 ? 0 : half];
    const auto a = fragment<kStorage>(values + half * half_pieces(kStorage), own, half);
#pragma unroll
    for (int chain = 0; chain < chains(kStorage); ++chain) {
      constexpr int kProducts = Fragment<kStorage>::kChainProducts;
      float part[4] = {};
#pragma unroll
      for (int step = 0; step < kProducts; ++step)
        multiply_step(a, chain * kProducts + step, in[half], false, part);
      scale_sums(own, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = add_chain(own, chain, i, part[i], sums[i]);
    }
  }
}

/// A strip whose parts a warp is to add.
struct Finish {
  int at = -1;  // the number of the strip among the block's; -1: none
  int tile = 0, strip = 0;
};

/// What becomes of a strip's sums. One warp.
template <Storage kStorage>
__device__ void finish_sums(const Product& p, const DecodeLists& lists, const Finish& finish,
                            const RowEnds& ends, float4 s) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
  const SmallTile tile = lists.tiles[p.down ? 1 : 0][finish.tile];
  const auto write = [&](int token, float upper, float lower) {
    if (token >= tile.count) return;
    const int position = tile.first + token;
    write_sums<kStorage, Adapters::none>(p, {finish.strip, g, position, lists.slots[position]}, ends,
                                         {upper, lower});
  };
  if (p.input.terms == 1) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) write(2 * t + i, i == 0 ? s.x : s.y, i == 0 ? s.z : s.w);
    return;
  }
  // Columns 0 to 2 are terms of the first token, in lanes 0 and 1 of a quad; 3 to 5 of the second.
  const float x = __shfl_down_sync(~0u, s.x, 1), y = __shfl_down_sync(~0u, s.y, 1);
  const float z = __shfl_down_sync(~0u, s.z, 1), w = __shfl_down_sync(~0u, s.w, 1);
  const float upper = t == 0 ? __fadd_rn(__fadd_rn(x, s.y), s.x) : __fadd_rn(__fadd_rn(y, x), s.y);
  const float lower = t == 0 ? __fadd_rn(__fadd_rn(z, s.w), s.z) : __fadd_rn(__fadd_rn(w, z), s.w);
  if (t < 2) write(t, upper, lower);
}

/// Where the parts of a block's strips meet.
template <Storage kStorage, int kSlice>
class Parts {
 public:
  __device__ explicit Parts(DecodeShared<kStorage, kSlice>& shared) : shared_(shared), ready_(shared.ready) {}

  /// A warp's part of the next strip.
  __device__ void add(const Product& p, const Items& items, const float (&sums)[4]) {
    const unsigned buffer = count_ % kPartBuffers;
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    if (count_ >= kPartBuffers)
      wait_for(shared_address(&shared_.parts_empty[buffer]), (count_ / kPartBuffers - 1) % 2);
    shared_.parts[buffer][warp][lane] = {sums[0], sums[1], sums[2], sums[3]};
    arrive(shared_address(&shared_.parts_full[buffer]));
    if (static_cast<int>(count_ % kDecodeWarps) == warp) {
      finish_ = {static_cast<int>(count_), items.tile, items.strip};
      const int row = items.strip * kStripRows + lane % kStripRows;
      prefetch(expert_of(p) + (lane < kStripRows ? p.weights.factors : p.weights.bias) + row * 4);
    }
    ++count_;
  }

  /// There is a strip to finish now: parts of it are not waited for unless they are the last ones.
  __device__ bool due(bool last) const {
    return finish_.at >= 0 && (last || static_cast<int>(count_) > finish_.at + kFinishLater);
  }

  __device__ void finish(const Product& p) {
    publish();
    const unsigned at = static_cast<unsigned>(finish_.at), buffer = at % kPartBuffers;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const RowEnds ends = row_ends(p.weights, expert_of(p), finish_.strip, lane / 4);
    wait_for(shared_address(&shared_.parts_full[buffer]), at / kPartBuffers % 2);
    float4 s = shared_.parts[buffer][0][lane];
#pragma unroll
    for (int warp = 1; warp < kDecodeWarps; ++warp) {
      const float4 more = shared_.parts[buffer][warp][lane];
      s = {__fadd_rn(s.x, more.x), __fadd_rn(s.y, more.y), __fadd_rn(s.z, more.z), __fadd_rn(s.w, more.w)};
    }
    arrive(shared_address(&shared_.parts_empty[buffer]));
    finish_sums<kStorage>(p, shared_.lists, finish_, ends, s);
    finish_.at = -1;
    if (!p.down) written_ = finish_.tile;
  }

  /// Lets others see what the warp finished last. Later than it was written, so that writes have long
  /// arrived.
  __device__ void publish() {
    if (written_ >= 0) count_up(ready_ + written_);
    written_ = -1;
  }

 private:
  __device__ const std::byte* expert_of(const Product& p) const {
    return p.experts + shared_.lists.tiles[p.down ? 1 : 0][finish_.tile].expert * p.expert_bytes;
  }

  DecodeShared<kStorage, kSlice>& shared_;
  std::uint32_t* ready_;
  Finish finish_;
  unsigned count_ = 0;
  int written_ = -1;
};

/// A block's share of a product.
template <Storage kStorage, int kSlice>
__device__ void multiply_share(const Decode& d, int product, DecodeShared<kStorage, kSlice>& shared,
                               SliceRing<kStorage, kSlice>& ring, Parts<kStorage, kSlice>& parts,
                               SliceInputs<kStorage, kSlice>& inputs) {
  const Product& p = d.products[product];
  const Slice slice(p);
  Items items(p, shared.lists.counts[product]);
  int loaded = p.down ? -1 : items.tile;
  for (bool more = true; more;) {
    more = items.item < items.end;
    if (more) {
      if (items.tile != loaded) {
        const SmallTile tile = shared.lists.tiles[product][items.tile];
        if (p.down) {
          if (threadIdx.x == 0) wait_until(shared.ready + tile.source, d.products[0].weights.strips);
          __syncthreads();
        }
        inputs.load(d, p, shared.lists, tile, slice);
        loaded = items.tile;
      }
      float sums[4] = {};
      if (slice.count > 0) {
        const std::byte* blocks = ring.wait();
#pragma unroll
        for (int b = 0; b < kSlice; ++b)
          if (b < slice.count)
            multiply_block<kStorage>(blocks + b * block_bytes(kStorage), inputs.of[b], sums);
        ring.release();
      }
      parts.add(p, items, sums);
      items.next(p);
    }
    if (parts.due(!more)) parts.finish(p);
  }
  parts.publish();
}

/// Barriers, and which of the two sets of counters is this launch's.
template <Storage kStorage, int kSlice>
__device__ void set_up(const Decode& d, DecodeShared<kStorage, kSlice>& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kLanes == 0)
    for (auto& full : shared.full[thread / kLanes]) init_barrier(shared_address(&full), 1);
  if (thread < kPartBuffers) {
    init_barrier(shared_address(&shared.parts_full[thread]), kDecodeThreads);
    init_barrier(shared_address(&shared.parts_empty[thread]), kLanes);
  }
  show_to_copies();
  __syncthreads();
  wait_for_earlier();
  if (thread == kDecodeThreads - 1) shared.ready = d.counters->ready[arrive_in_launch(d)];
}

template <Storage kStorage, int kSlice>
__device__ void decode(const Decode& d, DecodeShared<kStorage, kSlice>& shared) {
  set_up(d, shared);
  make_lists(
      d, [](const Product& p) { return slice_tokens(p.input.terms); }, shared.lists, shared.scratch);
  // Inputs before weights, behind which they would wait.
  SliceInputs<kStorage, kSlice> inputs;
  if (const Items items(d.products[0], shared.lists.counts[0]); items.item < items.end)
    inputs.load(d, d.products[0], shared.lists, shared.lists.tiles[0][items.tile], Slice(d.products[0]));
  SliceRing<kStorage, kSlice> ring(d, shared);
  if (threadIdx.x % kLanes == 0)
    for (int i = 0; i < DecodeShape<kStorage, kSlice>::kSlots; ++i) ring.fetch();
  __syncwarp();
  Parts<kStorage, kSlice> parts(shared);
#pragma unroll 1
  for (int product = 0; product < 2; ++product)
    multiply_share<kStorage, kSlice>(d, product, shared, ring, parts, inputs);
  cooperative_groups::this_grid().sync();
  if (blockIdx.x == 0)
    for (int tile = static_cast<int>(threadIdx.x); tile < kMostDecodeSlots; tile += kDecodeThreads)
      shared.ready[tile] = 0;
  combine_share(d, shared.lists);
}

/// Empty in code for cards before SM90.
template <Storage kStorage, int kSlice>
__global__ void __launch_bounds__(kDecodeThreads, 2) decode_layer(const __grid_constant__ Decode d) {
  extern __shared__ __align__(128) std::byte memory[];
  NV_IF_TARGET(NV_PROVIDES_SM_90,
               (decode<kStorage, kSlice>(d, *reinterpret_cast<DecodeShared<kStorage, kSlice>*>(memory));))
}

}  // namespace sluice::cuda
