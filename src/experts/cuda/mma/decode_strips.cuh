// SPDX-License-Identifier: Apache-2.0
// A whole layer in one launch, for calls with enough strips to keep all warps of the card at whole ones.
//
// Every processor has one block. Each groups the slots for itself, and then takes pieces of work,
// neighbouring strips of a tile, as long as there are any: processors differ by a tenth in how fast weights
// come to them. One warp takes the pieces and copies their inputs to shared memory, each while the one before
// is multiplied. The others take strips of them and compute them alone. Their weights come by bulk copies
// into a ring of each warp's own that runs on into its next strip. The sums of tokens come after a barrier of
// the grid.
//
// grid: as many blocks as the card holds    block: kStripThreads    shared: StripsShared
#pragma once

#include <cooperative_groups.h>

#include "experts/cuda/mma/decode_ends.cuh"
#include "experts/cuda/mma/epilogue.cuh"
#include "experts/cuda/mma/strip_inputs.cuh"

namespace sluice::cuda {

/// A lane's part of a block of weights.
template <Storage kStorage>
struct BlockPart {
  static constexpr int kParts = scale_parts(kStorage);
  uint4 values[kHalves * half_pieces(kStorage)];
  Scales<kStorage> scales[kParts];

  __device__ explicit BlockPart(SharedBytes block) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
    for (int i = 0; i < kHalves * half_pieces(kStorage); ++i) values[i] = read<uint4>(block + i * 512, lane);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      scales[part] = load_scales<kStorage>(
          block + value_bytes(kStorage) + part * (scale_bytes(kStorage) / kParts), lane);
  }
};

/// Adds the products of a block to the sums of each of the products of its columns.
template <Storage kStorage, TokenSpread kSpread>
__device__ void multiply_block(const BlockPart<kStorage>& block, const InputColumns<kSpread>& inputs, int at,
                               float (&sums)[InputColumns<kSpread>::kProducts][4]) {
  constexpr int kProducts = InputColumns<kSpread>::kProducts;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    Columns in[kProducts];
#pragma unroll
    for (int k = 0; k < kProducts; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) in[k].of[i] = read<uint4>(inputs.of[k] + at + (2 * half + i) * 64, 0);
    const Scales<kStorage>& scales = block.scales[BlockPart<kStorage>::kParts == 1 ? 0 : half];
    const auto a = fragment<kStorage>(block.values + half * half_pieces(kStorage), scales, half);
#pragma unroll
    for (int chain = 0; chain < chains(kStorage); ++chain) {
      constexpr int kSteps = Fragment<kStorage>::kChainProducts;
      float part[kProducts][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int k = 0; k < kProducts; ++k) multiply_step(a, chain * kSteps + step, in[k], k > 0, part[k]);
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        scale_sums(scales, part[k]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[k][i] = add_chain(scales, chain, i, part[k][i], sums[k][i]);
      }
    }
  }
}

/// The sum of a token's terms, of which the first is in `first`.
__device__ inline float add_terms(float first, float second, float third) {
  return __fadd_rn(__fadd_rn(third, second), first);
}

/// The part of a strip that a warp computes.
struct StripPart {
  int number;
  int first_slot;  // where the part's sums are, in rows
  PartBlocks part;
  std::uint32_t inputs;
};

/// What becomes of a strip's sums. One warp.
template <Storage kStorage, TokenSpread kSpread>
__device__ void finish_sums(const Product& p, const DecodeLists& lists, const SmallTile& tile,
                            const StripPart& strip, RowEnds ends,
                            const float (&sums)[InputColumns<kSpread>::kProducts][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
  if (strip.part.first > 0) ends.bias[0] = ends.bias[1] = 0;  // the first part has it
  const auto write = [&](int token, float upper, float lower) {
    if (token >= tile.count) return;
    const int position = tile.first + token;
    write_sums<kStorage, Adapters::none>(
        p, {strip.number, g, position, strip.first_slot + lists.slots[position]}, ends, {upper, lower});
  };
  const float(&s)[4] = sums[0];
  if constexpr (kSpread == TokenSpread::tokens) {
    const bool twice = tile.count <= 4;  // a token's columns are both of the lane's
#pragma unroll 1
    for (int i = 0; i < (twice ? 1 : 2); ++i)
      write(twice ? t : 2 * t + i, i == 0 ? s[0] : s[1], i == 0 ? s[2] : s[3]);
  } else if constexpr (kSpread == TokenSpread::triples) {
    // Columns 0 to 2 are terms of the first token, in lanes 0 and 1 of a quad; 3 to 5 of the second.
    const float x = __shfl_down_sync(~0u, s[0], 1), y = __shfl_down_sync(~0u, s[1], 1);
    const float z = __shfl_down_sync(~0u, s[2], 1), w = __shfl_down_sync(~0u, s[3], 1);
    if (t < 2)
      write(t, t == 0 ? add_terms(s[0], s[1], x) : add_terms(s[1], x, y),
            t == 0 ? add_terms(s[2], s[3], z) : add_terms(s[3], z, w));
  } else {
    write(t, add_terms(s[0], s[1], sums[1][0]), add_terms(s[2], s[3], sums[1][2]));
  }
}

/// A strip's part of a tile whose inputs are there.
template <Storage kStorage, TokenSpread kSpread>
__device__ void multiply_strip(const Product& p, const DecodeLists& lists, const SmallTile& tile,
                               const StripPart& strip, StripRing<kStorage>& ring) {
  // Asked for here, so that they are there at the end, before which nothing may look at them.
  const RowEnds ends = row_ends(p.weights, p.experts + tile.expert * p.expert_bytes, strip.number,
                                static_cast<int>(threadIdx.x) % kLanes / 4);
  const InputColumns<kSpread> inputs(strip.inputs, input_row_bytes(strip.part.most), tile.count);
  float sums[InputColumns<kSpread>::kProducts][4] = {};
  int at = 0;
  const auto multiply = [&](const BlockPart<kStorage>& part) {
    multiply_block<kStorage, kSpread>(part, inputs, at, sums);
    at += 2 * kBlockColumns;
  };
#pragma unroll 1
  for (int left = strip.part.count; left > 0; left -= RingShape<kStorage>::kSlotBlocks) {
    SharedBytes block = ring.wait();
#pragma unroll 1
    for (int more = min(left, RingShape<kStorage>::kSlotBlocks) - 1; more > 0; --more) {
      multiply(BlockPart<kStorage>(block));
      block = block + block_bytes(kStorage);
    }
    // The slot is free when its last block is in registers.
    const BlockPart<kStorage> last(block);
    ring.release();
    multiply(last);
  }
  finish_sums<kStorage, kSpread>(p, lists, tile, strip, ends, sums);
}

/// The strips that a warp takes.
template <Storage kStorage>
__device__ void multiply_strips(const Decode& d, StripsShared<kStorage>& shared) {
  StripRing<kStorage> ring(d, shared);
#pragma unroll 1
  for (int number = 0;;) {
    const int strip = ring.next_strip();
    // Through with the pieces before the strip's: whether or not it had one of theirs, their inputs have
    // come.
    const Piece* piece = &piece_of(shared, number);
    for (; piece->product < 2 && strip >= piece->begin + piece->count; piece = &piece_of(shared, ++number)) {
      wait_for(shared_address(&shared.inputs_full[number % 2]), number / 2 % 2);
      __syncwarp();
      if (threadIdx.x % kLanes == 0) arrive(shared_address(&shared.inputs_empty[number % 2]));
    }
    if (piece->product == 2) return;
    ring.begin_in(number);
    const Product& p = d.products[piece->product];
    const SmallTile tile = shared.lists.tiles[piece->product][piece->tile];
    const int up_tile = piece->tile;
    const StripPart at{.number = piece->first + strip - piece->begin,
                       .first_slot = piece->part * d.slots,
                       .part = {d, piece->product, piece->part},
                       .inputs = shared_address(shared.inputs[number % 2])};
    wait_for(shared_address(&shared.inputs_full[number % 2]), number / 2 % 2);
    if (p.input.terms == 1)
      multiply_strip<kStorage, TokenSpread::tokens>(p, shared.lists, tile, at, ring);
    else if (tile.count <= 2)
      multiply_strip<kStorage, TokenSpread::triples>(p, shared.lists, tile, at, ring);
    else
      multiply_strip<kStorage, TokenSpread::pairs>(p, shared.lists, tile, at, ring);
    if (!p.down) count_up(d.counters->ready[shared.launch] + up_tile);
  }
}

/// Barriers, and which of the two sets of counters is this launch's.
template <Storage kStorage>
__device__ void set_up(const Decode& d, StripsShared<kStorage>& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kLanes;
  if (thread % kLanes == 0 && warp < kStripWarps)
    for (auto& full : shared.full[warp]) init_barrier(shared_address(&full), 1);
  if (thread < 2) {
    init_barrier(shared_address(&shared.inputs_full[thread]), kLanes);
    init_barrier(shared_address(&shared.inputs_empty[thread]), kStripWarps);
  }
  if (thread < kPiecesAhead) init_barrier(shared_address(&shared.known[thread]), 1);
  if (thread == 0) shared.taken = 0;
  show_to_copies();
  __syncthreads();
  wait_for_earlier();
  if (thread == kStripThreads - 1) shared.launch = arrive_in_launch(d);
}

template <Storage kStorage>
__device__ void decode_by_strips(const Decode& d, StripsShared<kStorage>& shared) {
  set_up(d, shared);
  make_lists(
      d, [&](const Product& p) { return strip_tokens(p.input.terms, d.parts[p.down ? 1 : 0].blocks); },
      shared.lists, shared.scratch);
  if (threadIdx.x / kLanes == kStripWarps)
    share_out(d, shared);
  else
    multiply_strips(d, shared);
  cooperative_groups::this_grid().sync();
  if (blockIdx.x == 0) {
    for (int tile = static_cast<int>(threadIdx.x); tile < kMostDecodeSlots; tile += kStripThreads)
      d.counters->ready[shared.launch][tile] = 0;
    if (threadIdx.x == 0) d.counters->taken[shared.launch] = 0;
  }
  combine_share(d, shared.lists);
}

/// Empty in code for cards before SM90.
template <Storage kStorage>
__global__ void __launch_bounds__(kStripThreads, 1) decode_strips(const __grid_constant__ Decode d) {
  extern __shared__ __align__(128) std::byte memory[];
  NV_IF_TARGET(NV_PROVIDES_SM_90,
               (decode_by_strips<kStorage>(d, *reinterpret_cast<StripsShared<kStorage>*>(memory));))
}

template <Storage kStorage>
DecodeKernel strips_kernel_of() {
  static_assert(sizeof(StripsShared<kStorage>) <= 227 * 1024);
  return {reinterpret_cast<const void*>(decode_strips<kStorage>), kStripThreads,
          sizeof(StripsShared<kStorage>)};
}

}  // namespace sluice::cuda
