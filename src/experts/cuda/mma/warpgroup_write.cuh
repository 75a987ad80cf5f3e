// SPDX-License-Identifier: Apache-2.0
// A tile on warpgroups: its shape and sums, and where they go.
#pragma once

#include "experts/cuda/mma/epilogue.cuh"
#include "experts/cuda/mma/warpgroup.h"

namespace sluice::cuda {

inline constexpr int kChunkRowBytes = 2 * kChunkColumns;

/// How the tokens of a tile are multiplied: kSubs times kColumns of them. Terms that are few enough are
/// columns of one product.
template <class TeamType, int kTermCount, int kColumnCount, int kSubCount>
struct TileShape {
  using Team = TeamType;
  static constexpr int kTerms = kTermCount, kColumns = kColumnCount, kSubs = kSubCount;
  static constexpr int kTokens = kColumns * kSubs, kSums = kColumns / 2;
  static constexpr bool kJoint = kTerms == 1 || (kSubs == 1 && kTerms * kColumns <= 96);
  /// Whether the registers have room for weights beside those that are multiplied, 16 for each half block.
  static constexpr int kHeld = kSubs * kSums + (kJoint && kTerms > 1 ? kTerms + 1
                                                : kTerms > 1         ? 2
                                                                     : 1) *
                                                   kSums;
  static constexpr bool kAhead = kHeld + (Team::kWarpgroups == 6 ? 57
                                          : kTerms == 1          ? 64
                                                                 : 72) <=
                                 Team::kConsumerRegisters;
  static constexpr int kTermBytes = kTokens * kChunkRowBytes, kChunkBytes = kTerms * kTermBytes;
};

template <class T>
struct TileSums {
  float of[T::kSubs][T::kSums];
};

/// The ring and where a thread is in it.
struct Ring {
  std::uint32_t stages_at, full, empty;  // shared memory; the barriers of stage i are 8 i bytes further
  int stages, stage_bytes;
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ std::uint32_t here() const { return stages_at + stage * stage_bytes; }
  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct WarpgroupItem {
  Tile tile;
  int first_four, fours;  // of strips, one a warpgroup: up to as many as the block has warpgroups
  const std::byte* expert;
};

__device__ inline int columns_for(int tokens) {
  return (tokens + kColumnStep - 1) / kColumnStep * kColumnStep;
}

/// The strip of a warp, of four that a warpgroup has. Of gate and up they are those whose channels are pieces
/// of 16 bytes together where the down product reads them.
__device__ inline int strip_of(const WarpgroupProduct& p, int four, int warp) {
  if (p.down || p.mid.order == LaneOrder::quads) return kWarpgroupStrips * four + warp;
  return four / 4 * 16 + four % 4 + 4 * warp;
}

/// Fours of strips: of gate and up as many as make whole blocks of the down product.
__device__ inline int fours_of(const WarpgroupProduct& p) {
  return p.down ? (p.weights.strips + kWarpgroupStrips - 1) / kWarpgroupStrips : 4 * p.mid.blocks;
}

/// Gate and up to the intermediate, in words of two neighbouring channels, which two lanes have: one of them
/// takes the first token of the two that they share, and the other one the second. One loop over the tile's
/// tokens, eight at a time: an activation is several hundred instructions, and products of a kernel that
/// calls functions do not overlap.
template <Storage kStorage, class T>
__device__ __forceinline__ void write_mid(const WarpgroupProduct& p, const WarpgroupItem& item,
                                          const TileSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, odd = g % 2;
  const int warp = static_cast<int>(threadIdx.x) / kLanes % kWarpgroupStrips;
  const int four = item.first_four + static_cast<int>(threadIdx.x) / kWarpgroupLanes;
  const int strip = strip_of(p, four, warp), own_token = 2 * (lane % 4) + odd;
  const bool there = strip * (kStripRows / 2) + g < p.weights.rows;
  const RowEnds ends = row_ends(p.weights, item.expert, min(strip, p.weights.strips - 1), g);
  // A loop cannot choose among registers: these are in memory, and each is read while the one before is used.
  constexpr int kEights = T::kTokens / 8;
  float4 fours[kEights + 1];
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    const float* of = sums.of[4 * i / T::kSums] + 4 * i % T::kSums;
    fours[i] = make_float4(of[0], of[1], of[2], of[3]);
  }
  std::uint16_t* to =
      p.mid.data + 2 * warp +
      p.mid.at(four / 4, four % 4 * 4 + g / 2, 0, static_cast<std::size_t>(item.tile.first + own_token));
  const std::size_t term_stride = p.mid.positions * kChunkColumns;
  float4 next = fours[0];
#pragma unroll 1
  for (int eight = 0; 8 * eight < item.tile.count; ++eight, to += 8 * kChunkColumns) {
    const float4 sum = next;
    next = fours[eight + 1];
    const float gates[] = {finish<kStorage>(sum.x, ends.factor[0], nullptr, ends.bias[0]),
                           finish<kStorage>(sum.y, ends.factor[0], nullptr, ends.bias[0])};
    const float ups[] = {finish<kStorage>(sum.z, ends.factor[1], nullptr, ends.bias[1]),
                         finish<kStorage>(sum.w, ends.factor[1], nullptr, ends.bias[1])};
    float values[2];
    Activations::visit(p.activation, [&]<class A>() {
#pragma unroll
      for (int i = 0; i < 2; ++i) values[i] = A::apply(gates[i], ups[i], p.params);
    });
    // Zeros stand in the columns beyond the last channel.
    const Terms kept = as_terms(!there ? 0.0f : odd == 0 ? values[0] : values[1], p.mid.terms);
    const Terms given = as_terms(!there ? 0.0f : odd == 0 ? values[1] : values[0], p.mid.terms);
    const std::uint32_t first_two =
        __shfl_xor_sync(~0u, given.of[0] | static_cast<std::uint32_t>(given.of[1]) << 16, 4);
    const std::uint32_t third = __shfl_xor_sync(~0u, std::uint32_t{given.of[2]}, 4);
    if (8 * eight + own_token >= item.tile.count) continue;
    const std::uint32_t taken[] = {first_two & 0xFFFFu, first_two >> 16, third};
#pragma unroll
    for (int term = 0; term < kMostTerms; ++term)
      if (term < p.mid.terms)
        *reinterpret_cast<std::uint32_t*>(to + term * term_stride) =
            odd == 0 ? kept.of[term] | taken[term] << 16
                     : taken[term] | static_cast<std::uint32_t>(kept.of[term]) << 16;
  }
}

template <Storage kStorage, class T>
__device__ __forceinline__ void write_out(const WarpgroupProduct& p, const WarpgroupItem& item,
                                          const TileSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int strip = strip_of(p, item.first_four + warp / kWarpgroupStrips, warp % kWarpgroupStrips);
  if (strip >= p.weights.strips) return;
  const RowEnds ends = row_ends(p.weights, item.expert, strip, g);
  const int channel = strip * kStripRows + g;
#pragma unroll
  for (int sub = 0; sub < T::kSubs; ++sub)
#pragma unroll
    for (int n = 0; n < T::kColumns / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = sub * T::kColumns + 8 * n + 2 * (lane % 4) + i;
        if (token >= item.tile.count) continue;
        float* to = p.out + load_fresh(p.slot_of + item.tile.first + token) * p.out_stride + channel;
        const float upper = finish<kStorage>(sums.of[sub][4 * n + i], ends.factor[0], nullptr, ends.bias[0]);
        const float lower =
            finish<kStorage>(sums.of[sub][4 * n + 2 + i], ends.factor[1], nullptr, ends.bias[1]);
        if (channel < p.weights.rows) to[0] = upper;
        if (channel + 8 < p.weights.rows) to[8] = lower;
      }
}

}  // namespace sluice::cuda
