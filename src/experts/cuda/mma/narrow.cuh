// SPDX-License-Identifier: Apache-2.0
// The product for up to eight tokens of an expert, which waits for memory: a block works on one strip at a
// time, its warps on every so many-th block of columns of it. A warp holds its next blocks in registers,
// where they arrive while it works on the ones before. Sums of 64 columns go to shared memory, and one more
// warp adds them up in the order of the columns, so what the warps share out is not to be seen in the result.
//
// grid: as many blocks as the card holds, strips of tiles in turn    block: 32 * (warps + 1)
// shared: two buffers of 2 * kHeld * warps * 128 floats
#pragma once

#include "experts/cuda/mma/epilogue.cuh"

namespace sluice::cuda {

inline constexpr int kMostWarps = 8;
/// Blocks that a warp holds in registers: about 4 KB.
constexpr int held_blocks(Storage storage) {
  return value_bits(storage) == 4 ? 4 : value_bits(storage) == 8 ? 2 : 1;
}

/// Of a strip: warps that work on it, and how often they go over it.
struct Sharing {
  int warps, rounds;
};
constexpr Sharing sharing(Storage storage, int k_blocks) {
  const int held = held_blocks(storage);
  const int rounds = (k_blocks + kMostWarps * held - 1) / (kMostWarps * held);
  return {(k_blocks + rounds * held - 1) / (rounds * held), rounds};
}

/// All warps of a block, from wherever they are.
__device__ inline void meet(const Sharing& s) {
  asm volatile("bar.sync 1, %0;" ::"r"((s.warps + 1) * kLanes) : "memory");
}

/// Sums of half a block: [16 rows][8 columns].
inline constexpr int kPartial = 128;
constexpr std::size_t narrow_shared_bytes(Storage storage, int warps) {
  return std::size_t{2} * kHalves * static_cast<std::size_t>(held_blocks(storage) * warps) * kPartial * 4;
}

/// A lane's part of a block.
template <Storage kStorage>
struct Held {
  uint4 values[kHalves * half_pieces(kStorage)];
  Scales<kStorage> scales;

  __device__ void load(const std::byte* block, int lane) {
#pragma unroll
    for (int i = 0; i < kHalves * half_pieces(kStorage); ++i)
      values[i] = load_once(block + i * 512 + lane * 16);
    const std::byte* behind = block + value_bytes(kStorage);
    if constexpr (scale_bytes(kStorage) == 2 * kLanes) scales.bytes = load_once_u16(behind + 2 * lane);
    if constexpr (scale_bytes(kStorage) == 4 * kLanes) scales.bytes = load_once_u32(behind + 4 * lane);
    if constexpr (Scales<kStorage>::kPerBlock) scales.rows = __ldg(reinterpret_cast<const float2*>(behind));
  }
};

/// Where a step is: a round over a strip of a tile.
struct Step {
  int item, round;
  Tile tile;
  int strip;

  __device__ void locate(const Product& p) {
    const Tile* at = p.tiles + item / p.weights.strips;
    strip = item % p.weights.strips;
    tile = {load_fresh(&at->expert), load_fresh(&at->first), load_fresh(&at->count)};
  }
  __device__ bool advance(const Product& p, int rounds, int items) {
    if (++round < rounds) return true;
    round = 0;
    item += static_cast<int>(gridDim.x);
    if (item >= items) return false;
    locate(p);
    return true;
  }
  __device__ const std::byte* expert(const Product& p) const {
    return p.experts + tile.expert * p.expert_bytes;
  }
  template <Storage kStorage>
  __device__ const std::byte* blocks(const Product& p) const {
    return expert(p) + p.weights.blocks +
           static_cast<std::int64_t>(strip * p.weights.k_blocks) * block_bytes(kStorage);
  }
};

/// Terms of a token side by side in the eight columns of a product, where there is room. Infinite weights
/// must not meet later terms of inputs, so those of 16 bits take one after another.
template <Storage kStorage>
__device__ int terms_aside(const Product& p, const Tile& tile) {
  return value_bits(kStorage) < 16 && tile.count * p.input.terms <= 8 ? p.input.terms : 1;
}

/// The column of products that a lane fills: a token's row, from the lane's columns of the first block on.
struct Column {
  const std::byte* row = nullptr;
  int columns = 0;  // that are there; none: zeros

  __device__ Columns load(int block, int half, std::ptrdiff_t term_bytes) const {
    Columns in;
    const std::byte* from = row + term_bytes + block * (2 * kBlockColumns) + 32 * half;
    const int left = columns - block * kBlockColumns - 16 * half;
#pragma unroll
    for (int i = 0; i < 2; ++i) in.of[i] = load_or_zeros(from + 16 * i, left > 8 * i);
    return in;
  }
};

template <Storage kStorage>
__device__ Column column_of(const Product& p, const Tile& tile, int lane) {
  const int aside = terms_aside<kStorage>(p, tile), g = lane / 4, first = 32 * (lane % 4);
  if (g >= tile.count * aside) return {reinterpret_cast<const std::byte*>(p.input.data), 0};
  const int token = aside == 1 ? g : aside == 2 ? g / 2 : g / 3;
  const int position = tile.first + token;
  const int row = p.rows == nullptr ? position : load_fresh(p.rows + position);
  const std::uint16_t* at = p.input.data + static_cast<std::size_t>(row) * p.input.stride +
                            static_cast<std::size_t>(g - token * aside) * p.input.plane + first;
  return {reinterpret_cast<const std::byte*>(at), p.input.columns - first};
}

/// A warp's block times all columns. The lane's sums go to `to`.
template <Storage kStorage>
__device__ void multiply_block(const Held<kStorage>& held, const Column& column, int block, int terms,
                               std::ptrdiff_t plane_bytes, float2* to) {
  std::uint32_t m[kHalves][2];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) multipliers(held.scales, half, m[half]);
#pragma unroll
  for (int half = 0; half < kHalves; ++half, to += kPartial / 2) {
    Columns in = column.load(block, half, (terms - 1) * plane_bytes);
    const auto a = fragment<kStorage>(held.values + half * half_pieces(kStorage), m[half]);
    float whole[4];
    multiply_half(a, in, terms > 1, whole);
    scale_sums(held.scales, whole);
#pragma unroll 1
    for (int term = terms - 2; term >= 0; --term) {
      in = column.load(block, half, term * plane_bytes);
      float sums[4];
      multiply_half(a, in, term > 0, sums);
      scale_sums(held.scales, sums);
#pragma unroll
      for (int i = 0; i < 4; ++i) whole[i] = __fadd_rn(whole[i], sums[i]);
    }
    to[0] = {whole[0], whole[1]};
    to[32] = {whole[2], whole[3]};
  }
}

/// The last warp: adds up what the others left, and writes the strip.
template <Storage kStorage>
__device__ void reduce_strips(const Product& p, Step at, const Sharing& s, int items, const float* shared) {
  constexpr int kHeld = held_blocks(kStorage);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float sums[2][2] = {};
  for (int buffer = 0;; buffer ^= 1) {
    const int aside = terms_aside<kStorage>(p, at.tile);
    const int first = at.round * kHeld * s.warps;
    const int halves = kHalves * min(kHeld * s.warps, p.weights.k_blocks - first);
    const float* partials = shared + buffer * kHalves * kHeld * s.warps * kPartial;
    if (at.round == 0) sums[0][0] = sums[0][1] = sums[1][0] = sums[1][1] = 0;
    meet(s);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int q = lane + i * kLanes;
      if (q >= 8 * at.tile.count) continue;
      const float* from = partials + q / at.tile.count * 8 + q % at.tile.count * aside;
#pragma unroll 4
      for (int half = 0; half < halves; ++half, from += kPartial) {
        float upper = from[aside - 1], lower = from[64 + aside - 1];
        for (int term = aside - 2; term >= 0; --term) {
          upper = __fadd_rn(upper, from[term]);
          lower = __fadd_rn(lower, from[64 + term]);
        }
        sums[i][0] = __fadd_rn(sums[i][0], upper);
        sums[i][1] = __fadd_rn(sums[i][1], lower);
      }
    }
    if (at.round == s.rounds - 1) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        const int q = lane + i * kLanes;
        if (q >= 8 * at.tile.count) continue;
        const int position = at.tile.first + q % at.tile.count;
        write_sums<kStorage>(p, at.expert(p), at.strip, q / at.tile.count, position,
                             load_fresh(p.slots + position),
                             {i == 0 ? sums[0][0] : sums[1][0], i == 0 ? sums[0][1] : sums[1][1]});
      }
    }
    if (!at.advance(p, s.rounds, items)) return;
  }
}

/// The other warps.
template <Storage kStorage>
__device__ void multiply_strips(const Product& p, Step at, const Sharing& s, int items, float* shared) {
  constexpr int kHeld = held_blocks(kStorage), kBytes = block_bytes(kStorage);
  const int warp = static_cast<int>(threadIdx.x / kLanes), lane = static_cast<int>(threadIdx.x % kLanes);
  const int a_round = kHeld * s.warps, k_blocks = p.weights.k_blocks;
  Held<kStorage> held[kHeld];
  const auto plane_bytes = static_cast<std::ptrdiff_t>(2 * p.input.plane);
  const std::byte* blocks = at.blocks<kStorage>(p);
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    if (j * s.warps + warp < k_blocks)
      held[j].load(blocks + static_cast<std::int64_t>(j * s.warps + warp) * kBytes, lane);
  if (p.down) wait_for_earlier();
  start_later();
  Column column = column_of<kStorage>(p, at.tile, lane);
  for (int buffer = 0;; buffer ^= 1) {
    Step next = at;
    const bool more = next.advance(p, s.rounds, items);
    const int terms = p.input.terms / terms_aside<kStorage>(p, at.tile);
    // Row g and columns 2 t and 2 t + 1 of the warp's first block.
    float2* to = reinterpret_cast<float2*>(shared + (buffer * a_round + warp) * kHalves * kPartial) + lane;
    Column next_column = column;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int in_round = j * s.warps + warp, block = at.round * a_round + in_round;
      if (block < k_blocks)
        multiply_block(held[j], column, block, terms, plane_bytes, to + j * s.warps * kPartial);
      if (!more) continue;
      if (j == 0) {
        blocks = next.blocks<kStorage>(p);
        next_column = column_of<kStorage>(p, next.tile, lane);
      }
      const int later = next.round * a_round + in_round;
      if (later < k_blocks) held[j].load(blocks + static_cast<std::int64_t>(later) * kBytes, lane);
    }
    meet(s);
    if (!more) return;
    at = next;
    column = next_column;
  }
}

template <Storage kStorage>
__global__ void __launch_bounds__((kMostWarps + 1) * kLanes, 2)
    multiply_narrow(const __grid_constant__ Product p) {
  extern __shared__ __align__(16) float shared[];
  // What a down product needs of the lists is older than the kernel before it.
  if (!p.down) wait_for_earlier();
  const int items = load_fresh(p.tile_count) * p.weights.strips;
  Step at{.item = static_cast<int>(blockIdx.x), .round = 0, .tile = {}, .strip = 0};
  if (at.item >= items) {
    if (p.down) wait_for_earlier();
    return;
  }
  at.locate(p);
  const Sharing s = sharing(kStorage, p.weights.k_blocks);
  if (static_cast<int>(threadIdx.x) / kLanes == s.warps) {
    if (p.down) wait_for_earlier();
    start_later();
    reduce_strips<kStorage>(p, at, s, items, shared);
  } else {
    multiply_strips<kStorage>(p, at, s, items, shared);
  }
}

}  // namespace sluice::cuda
