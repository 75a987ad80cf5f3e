// SPDX-License-Identifier: Apache-2.0
// A tile on warpgroups: its shape and sums, and where they go.
#pragma once

#include "experts/cuda/mma/bulk.cuh"
#include "experts/cuda/mma/epilogue.cuh"
#include "experts/cuda/mma/warpgroup.h"

namespace sluice::cuda {

inline constexpr int kChunkRowBytes = 2 * kChunkColumns;

/// How the tokens of a tile are multiplied: kSubs times kColumns of them. Terms that are few enough are
/// columns of one product.
template <class TeamType, int kTermCount, int kColumnCount, int kSubCount, int kMostMidTerms = kMostTerms>
struct TileShape {
  using Team = TeamType;
  static constexpr int kTerms = kTermCount, kColumns = kColumnCount, kSubs = kSubCount;
  static constexpr int kMidTerms = kMostMidTerms;  // of what gate and up make, at most
  static constexpr int kTokens = kColumns * kSubs, kSums = kColumns / 2;
  static constexpr bool kJoint = kTerms == 1 || (kSubs == 1 && kTerms * kColumns <= 96);
  /// Registers of a thread for sums and products, and how many there may be beside weights that are unpacked
  /// while others are multiplied, 16 for each half block.
  static constexpr int kHeld = kSubs * kSums + (kJoint && kTerms > 1 ? kTerms + 1
                                                : kTerms > 1         ? 2
                                                                     : 1) *
                                                   kSums;
  static constexpr int kRoom = Team::kConsumerRegisters - (Team::kWarpgroups == 6 ? 57
                                                           : kTerms == 1          ? 64
                                                                                  : 72);
  static constexpr int kTermBytes = kTokens * kChunkRowBytes, kChunkBytes = kTerms * kTermBytes;
};

template <class T>
struct TileSums {
  float of[T::kSubs][T::kSums];
};

/// The ring and where a thread is in it.
struct Ring {
  std::uint32_t stages_at, barriers;  // shared memory; of barriers those of full stages, then of empty ones
  int stages, stage_bytes;
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ std::uint32_t full() const { return barriers + 8 * stage; }
  __device__ std::uint32_t empty() const { return barriers + 8 * (kMostStages + stage); }
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

/// Asks for what the sums of an item end with, which is in no cache.
__device__ inline void prefetch_ends(const WarpgroupProduct& p, const WarpgroupItem& item) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  const int strip = strip_of(p, item.first_four + warp / kWarpgroupStrips, warp % kWarpgroupStrips);
  if (lane < 2 && strip < p.weights.strips)
    prefetch(item.expert + (lane == 0 ? p.weights.factors : p.weights.bias) +
             strip * kStripRows * static_cast<int>(sizeof(float)));
}

/// Eights of tokens whose sums are in memory at a time: what a block has of them fits a processor's
/// first-level cache beside the ring.
inline constexpr int kEightsAtOnce = 4;
struct EightsAtOnce {
  float4 of[kEightsAtOnce + 1];
};

/// A loop cannot choose among registers: the sums of some tokens, by a number that the compiler does not
/// know.
template <class T>
__device__ __forceinline__ void choose_eights(const TileSums<T>& sums, int first, EightsAtOnce& out) {
#pragma unroll
  for (int all = 0; all < T::kTokens / 8; all += kEightsAtOnce) {
    if (first != all) continue;
#pragma unroll
    for (int i = 0; i < kEightsAtOnce && all + i < T::kTokens / 8; ++i) {
      const float* of = sums.of[4 * (all + i) / T::kSums] + 4 * (all + i) % T::kSums;
      out.of[i] = make_float4(of[0], of[1], of[2], of[3]);
    }
  }
}

/// Two neighbouring channels of a token as words of every term, from the lanes that have one each: one takes
/// the first token of the two that they share, and the other one the second.
struct MidWords {
  std::uint32_t of[kMostTerms];
};
__device__ __forceinline__ MidWords mid_words(const float (&values)[2], int odd, int terms) {
  const Terms kept = as_terms(odd == 0 ? values[0] : values[1], terms);
  const Terms given = as_terms(odd == 0 ? values[1] : values[0], terms);
  const std::uint32_t first_two =
      __shfl_xor_sync(~0u, given.of[0] | static_cast<std::uint32_t>(given.of[1]) << 16, 4);
  const std::uint32_t third = terms > 2 ? __shfl_xor_sync(~0u, std::uint32_t{given.of[2]}, 4) : 0;
  const std::uint32_t taken[] = {first_two & 0xFFFFu, first_two >> 16, third};
  MidWords words;
#pragma unroll
  for (int term = 0; term < kMostTerms; ++term)
    words.of[term] = odd == 0 ? kept.of[term] | taken[term] << 16
                              : taken[term] | static_cast<std::uint32_t>(kept.of[term]) << 16;
  return words;
}

/// Gate and up of a lane's two tokens of eight, activated. Zeros stand in the columns beyond the last
/// channel.
template <Storage kStorage>
__device__ __forceinline__ void activate_two(const WarpgroupProduct& p, const RowEnds& ends, float4 sum,
                                             float (&values)[2]) {
  const float gates[] = {finish<kStorage>(sum.x, ends.factor[0], nullptr, ends.bias[0]),
                         finish<kStorage>(sum.y, ends.factor[0], nullptr, ends.bias[0])};
  const float ups[] = {finish<kStorage>(sum.z, ends.factor[1], nullptr, ends.bias[1]),
                       finish<kStorage>(sum.w, ends.factor[1], nullptr, ends.bias[1])};
  Activations::visit(p.activation, [&]<class A>() {
#pragma unroll
    for (int i = 0; i < 2; ++i) values[i] = A::apply(gates[i], ups[i], p.params);
  });
}

/// Gate and up to the intermediate. One loop over the tile's tokens, eight at a time: an activation is
/// several hundred instructions, and products of a kernel that calls functions do not overlap.
template <Storage kStorage, class T>
__device__ __forceinline__ void write_mid(const WarpgroupProduct& p, const WarpgroupItem& item,
                                          const TileSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, odd = g % 2;
  const int warp = static_cast<int>(threadIdx.x) / kLanes % kWarpgroupStrips;
  const int four = item.first_four + static_cast<int>(threadIdx.x) / kWarpgroupLanes;
  const int strip = strip_of(p, four, warp), own_token = 2 * (lane % 4) + odd;
  const bool there = strip * (kStripRows / 2) + g < p.weights.rows;
  const RowEnds ends = row_ends(p.weights, item.expert, min(strip, p.weights.strips - 1), g);
  const int terms = T::kMidTerms == 1 ? 1 : p.mid.terms;
  std::uint16_t* to =
      p.mid.data + 2 * warp +
      p.mid.at(four / 4, four % 4 * 4 + g / 2, 0, static_cast<std::size_t>(item.tile.first + own_token));
  const std::size_t term_stride = p.mid.positions * kChunkColumns;
  EightsAtOnce eights;
  float4 next;
#pragma unroll 1
  for (int eight = 0; 8 * eight < item.tile.count; ++eight, to += 8 * kChunkColumns) {
    if (eight % kEightsAtOnce == 0) {
      choose_eights<T>(sums, eight, eights);
      next = eights.of[0];
    }
    const float4 sum = next;
    next = eights.of[eight % kEightsAtOnce + 1];  // while this one is used
    float values[2];
    activate_two<kStorage>(p, ends, sum, values);
    if (!there) values[0] = values[1] = 0;
    const MidWords words = mid_words(values, odd, terms);
    if (8 * eight + own_token >= item.tile.count) continue;
#pragma unroll
    for (int term = 0; term < T::kMidTerms; ++term)
      if (term < terms) *reinterpret_cast<std::uint32_t*>(to + term * term_stride) = words.of[term];
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
  for (int sub = 0; sub < T::kSubs; ++sub) {
    // All at once: one after the other they were a tenth of the down product's time.
    int slots[T::kColumns / 4];
#pragma unroll
    for (int i = 0; i < T::kColumns / 4; ++i) {
      const int token = sub * T::kColumns + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
      slots[i] = token < item.tile.count ? load_fresh(p.slot_of + item.tile.first + token) : -1;
    }
#pragma unroll
    for (int i = 0; i < T::kColumns / 4; ++i) {
      if (slots[i] < 0) continue;
      const float* sum = sums.of[sub] + 4 * (i / 2) + i % 2;
      float* to = p.out + slots[i] * p.out_stride + channel;
      const float upper = finish<kStorage>(sum[0], ends.factor[0], nullptr, ends.bias[0]);
      const float lower = finish<kStorage>(sum[2], ends.factor[1], nullptr, ends.bias[1]);
      if (channel < p.weights.rows) to[0] = upper;
      if (channel + 8 < p.weights.rows) to[8] = lower;
    }
  }
}

template <Storage kStorage, class T>
__device__ __forceinline__ void write_sums(const WarpgroupProduct& p, const WarpgroupItem& item,
                                           const TileSums<T>& sums) {
  if (p.down)
    write_out<kStorage, T>(p, item, sums);
  else
    write_mid<kStorage, T>(p, item, sums);
}

}  // namespace sluice::cuda
