// SPDX-License-Identifier: Apache-2.0
// The products of a tile on warpgroups: weights are unpacked into registers and multiplied with tokens in
// shared memory, a stage of the ring after another.
//
// Two ways to sum: chains of 64 columns of every term, added to others in float32, which are the bits of
// mma.sync's kernels; and whole rows that stay in the tensor cores, for what is rounded to bf16 anyway.
#pragma once

#include "experts/cuda/mma/bulk.cuh"
#include "experts/cuda/mma/warpgroup_write.cuh"
#include "experts/cuda/mma/wgmma.cuh"

namespace sluice::cuda {

/// What integers take of a thread's registers beside their values: two scales and two zero points.
constexpr int more_registers(Storage storage) { return is_integer(storage) ? 20 : 0; }

/// A lane's part of half a block.
template <Storage kStorage>
struct Weights {
  Scales<kStorage> scales;
  Fragment<kStorage> a;
};

template <Storage kStorage>
__device__ Weights<kStorage> unpack_half(SharedBytes block, int half) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  constexpr int kPart = scale_parts(kStorage) == 1 ? 0 : scale_bytes(kStorage) / scale_parts(kStorage);
  Weights<kStorage> weights;
  weights.scales = load_scales<kStorage>(block + value_bytes(kStorage) + half * kPart, lane);
  uint4 values[half_pieces(kStorage)];
#pragma unroll
  for (int i = 0; i < half_pieces(kStorage); ++i)
    values[i] = read<uint4>(block + (half * half_pieces(kStorage) + i) * 512, lane);
  weights.a = fragment<kStorage>(values, weights.scales, half);
  return weights;
}

/// Starts the products of a chain's columns of one term, or of all, from zero.
template <Storage kStorage, int kCount>
__device__ void start_chain(const Fragment<kStorage>& a, int chain, Tokens tokens, float (&sums)[kCount]) {
  leave_unset(sums);
  begin_products();
#pragma unroll
  for (int i = 0; i < Fragment<kStorage>::kChainProducts; ++i) {
    const int step = chain * Fragment<kStorage>::kChainProducts + i;
    warpgroup_product(sums, a.of[0][step], tokens + 32 * step, i > 0 ? 1 : 0);
  }
  commit_products();
}

/// The sum of terms so far, of the columns of a chain.
template <Storage kStorage, class T>
struct Whole {
  float of[T::kSums];

  __device__ void take(const Scales<kStorage>& scales, const float* part, int term) {
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) {
      float scaled = part[i];
      if constexpr (Scales<kStorage>::kPerBlock)
        scaled = __fmul_rn(i % 4 < 2 ? scales.rows.x : scales.rows.y, scaled);
      of[i] = term == T::kTerms - 1 ? scaled : __fadd_rn(of[i], scaled);
    }
  }
};

/// Adds half a block's products to the sums; `tokens` are those of its 64 columns. While the last of them are
/// under way something else is done.
template <Storage kStorage, class T, class Meanwhile>
__device__ __forceinline__ void add_half(const Weights<kStorage>& weights, Tokens tokens, TileSums<T>& sums,
                                         const Meanwhile& meanwhile) {
  // Terms that are columns of one product are one step.
  constexpr int kSteps = T::kJoint ? 1 : T::kTerms, kStepTerms = T::kTerms / kSteps;
#pragma unroll
  for (int chain = 0; chain < chains(kStorage); ++chain)
#pragma unroll
    for (int sub = 0; sub < T::kSubs; ++sub) {
      const Tokens from = tokens + sub * T::kColumns * kChunkRowBytes;
      Whole<kStorage, T> whole;
#pragma unroll
      for (int step = kSteps - 1; step >= 0; --step) {
        float part[kStepTerms * T::kSums];
        start_chain(weights.a, chain, from + step * T::kTermBytes, part);
        if (chain == chains(kStorage) - 1 && sub == T::kSubs - 1 && step == 0) meanwhile();
        wait_products();
#pragma unroll
        for (int term = kStepTerms - 1; term >= 0; --term)
          whole.take(weights.scales, part + term * T::kSums, step * kStepTerms + term);
      }
#pragma unroll
      for (int i = 0; i < T::kSums; ++i)
        sums.of[sub][i] = add_chain(weights.scales, chain, i % 4, whole.of[i], sums.of[sub][i]);
    }
}

/// Where a warp's weights of a stage begin, of the stage at zero.
template <Storage kStorage, class Team>
__device__ SharedBytes weights_of_warp(const Ring& ring) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  return {ring.stages_at + ring.stage_bytes - (Team::kStrips - warp) * block_bytes(kStorage)};
}

/// Half a block is unpacked while the half before it is multiplied, where the registers have room for that.
template <Storage kStorage, class T>
__device__ __forceinline__ void add_chains(int blocks, Ring& ring, TileSums<T>& sums) {
  constexpr bool kAhead = T::kHeld + more_registers(kStorage) <= T::kRoom;
  const SharedBytes at = weights_of_warp<kStorage, typename T::Team>(ring);
  const auto unpack = [&](int half) {
    return unpack_half<kStorage>(at + ring.stage * ring.stage_bytes, half);
  };
  Weights<kStorage> first, second;
  const auto begin = [&] {
    wait_for(ring.full(), ring.parity);
    first = unpack(0);
  };
  if constexpr (kAhead) begin();
#pragma unroll 1
  for (int block = 1; block <= blocks; ++block) {
    if constexpr (!kAhead) begin();
    const Tokens tokens = tokens_at(ring.here());
    const std::uint32_t done = ring.empty();
    add_half<kStorage, T>(first, tokens, sums, [&] {
      if constexpr (kAhead) second = unpack(1);
    });
    if constexpr (!kAhead) second = unpack(1);
    ring.next();
    add_half<kStorage, T>(second, tokens + T::kChunkBytes, sums, [&] {
      if constexpr (kAhead)
        if (block < blocks) begin();
    });
    __syncwarp();
    if (threadIdx.x % kLanes == 0) arrive(done);
  }
}

/// Starts half a block's products, which are added to the sums of a row; `tokens` are those of its columns.
template <Storage kStorage, class T>
__device__ __forceinline__ void start_half(const Weights<kStorage>& weights, Tokens tokens,
                                           TileSums<T>& sums) {
  begin_products();
#pragma unroll
  for (int step = 0; step < kHalfSteps; ++step)
#pragma unroll
    for (int sub = 0; sub < T::kSubs; ++sub)
      warpgroup_product(sums.of[sub], weights.a.of[0][step],
                        tokens + sub * T::kColumns * kChunkRowBytes + 32 * step, 1);
  commit_products();
}

/// Rows of one term whose weights have their scales in them: products are only waited for where their
/// weights' registers are needed, so one half is always under way while another is unpacked.
template <Storage kStorage, class T>
__device__ __forceinline__ void add_rows(int blocks, Ring& ring, TileSums<T>& sums) {
  const SharedBytes at = weights_of_warp<kStorage, typename T::Team>(ring);
  const auto unpack = [&](int half) {
    return unpack_half<kStorage>(at + ring.stage * ring.stage_bytes, half);
  };
  const auto release = [](std::uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % kLanes == 0) arrive(barrier);
  };
  wait_for(ring.full(), ring.parity);
  Weights<kStorage> first = unpack(0), second;
  std::uint32_t done = 0;
#pragma unroll 1
  for (int block = 1; block <= blocks; ++block) {
    const Tokens tokens = tokens_at(ring.here());
    start_half<kStorage, T>(first, tokens, sums);
    wait_products<1>();
    if (block > 1) release(done);
    second = unpack(1);
    start_half<kStorage, T>(second, tokens + T::kChunkBytes, sums);
    done = ring.empty();
    ring.next();
    wait_products<1>();
    if (block == blocks) break;
    wait_for(ring.full(), ring.parity);
    first = unpack(0);
  }
  wait_products();
  release(done);
}

/// What a block of warpgroups computes in chains: tiles of any size. `between` is called when all is
/// multiplied and nothing written.
template <Storage kStorageType, class TeamType, int kTermCount>
struct ChainSums {
  using Team = TeamType;
  static constexpr Storage kStorage = kStorageType;
  static constexpr int kTerms = kTermCount;

  /// Columns that a chunk has in a stage, of a tile of so many tokens.
  __device__ static int stage_columns(int tokens) { return columns_for(tokens); }

  template <class Between>
  __device__ __forceinline__ static void multiply(const WarpgroupProduct& p, const WarpgroupItem& item,
                                                  Ring& ring, const Between& between) {
    const auto with = [&]<class T>(T) {
      TileSums<T> sums = {};
      add_chains<kStorage, T>(p.weights.k_blocks, ring, sums);
      between();
      write_sums<kStorage, T>(p, item, sums);
    };
    const int steps = columns_for(item.tile.count) / kColumnStep;
    if constexpr (Team::kWarpgroups == ManyWarpgroups::kWarpgroups) {
      if constexpr (kTerms == 1)
        if (steps == 2) return with(TileShape<Team, kTerms, 32, 1>{});
      return with(TileShape<Team, kTerms, 16, 1>{});
    } else {
      switch (steps) {
        case 1:
          return with(TileShape<Team, kTerms, 16, 1>{});
        case 2:
          return with(TileShape<Team, kTerms, 32, 1>{});
        case 3:
          return with(TileShape<Team, kTerms, 48, 1>{});
        case 4:
          return with(TileShape<Team, kTerms, 64, 1>{});
        default:
          break;
      }
      if constexpr (kTerms == 1) switch (steps) {
          case 5:
            return with(TileShape<Team, 1, 80, 1>{});
          case 6:
            return with(TileShape<Team, 1, 96, 1>{});
          case 7:
            return with(TileShape<Team, 1, 56, 2>{});
          case 8:
            return with(TileShape<Team, 1, 64, 2>{});
          case 9:
            return with(TileShape<Team, 1, 48, 3>{});
          default:
            return with(TileShape<Team, 1, 80, 2>{});
        }
    }
  }
};

/// What a block of warpgroups computes in rows: tiles of up to kMost tokens, of one term. A kernel multiplies
/// all of them as if they were the largest: with products of two sizes in it ptxas lets none overlap with
/// anything (C7512). Behind its tokens a stage has what was there before, whose sums are not written.
template <Storage kStorageType, class TeamType, int kMost>
struct RowSums {
  using Team = TeamType;
  static constexpr Storage kStorage = kStorageType;
  static constexpr int kTerms = 1;

  __device__ static int stage_columns(int) { return kMost; }

  template <class Between>
  __device__ __forceinline__ static void multiply(const WarpgroupProduct& p, const WarpgroupItem& item,
                                                  Ring& ring, const Between& between) {
    constexpr int kSubs = kMost > 96 ? 2 : 1;
    using T = TileShape<Team, kTerms, kMost / kSubs, kSubs, 1>;
    TileSums<T> sums = {};
    add_rows<kStorage, T>(p.weights.k_blocks, ring, sums);
    between();
    write_sums<kStorage, T>(p, item, sums);
  }
};

}  // namespace sluice::cuda
