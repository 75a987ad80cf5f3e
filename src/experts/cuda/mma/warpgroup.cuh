// SPDX-License-Identifier: Apache-2.0
// A product on warpgroups (wgmma): weights become bf16 in registers, which are its A operand, and tokens are
// read from shared memory, up to 160 at a time. So a weight is unpacked once for all of them, and neither the
// tokens nor the multiplying take instructions of their own.
//
// A block has three or six warpgroups, of four strips each, and one more that fills a ring of shared memory
// by bulk copies: a stage is 128 columns of the block's strips and of the tile's tokens. It runs ahead, into
// the next tile. While one warpgroup unpacks or adds up another multiplies.
//
// grid: a block a processor, groups of a block's strips of a tile in turn
// block: TeamOf::kThreads    shared: the ring
#pragma once

#include "experts/cuda/mma/bulk.cuh"
#include "experts/cuda/mma/warpgroup_write.cuh"
#include "experts/cuda/mma/wgmma.cuh"

namespace sluice::cuda {

/// What a lane of the filling warps does for a block of columns: a strip, or a chunk of a term.
/// Copies of a warp start one after the other, so four warps share them: one alone held the others up (928 us
/// became 847 at 256 tokens).
template <class Team, Storage kStorage, int kTerms>
__device__ void fill(const WarpgroupProduct& p, const WarpgroupItem& item, Ring& ring) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  const int part = 4 * lane + warp % 4;
  const int columns = columns_for(item.tile.count);
  const std::byte* from = nullptr;
  std::size_t step = 0;
  std::uint32_t bytes = 0, to = 0;
  if (part < Team::kStrips) {
    const int own = part / kWarpgroupStrips;
    const int strip = min(strip_of(p, item.first_four + own, part % kWarpgroupStrips), p.weights.strips - 1);
    from = item.expert + p.weights.blocks + strip * p.weights.strip_bytes();
    step = block_bytes(kStorage);
    bytes = own < item.fours ? block_bytes(kStorage) : 0;
    to = static_cast<std::uint32_t>(ring.stage_bytes - (Team::kStrips - part) * block_bytes(kStorage));
  } else if (part < Team::kStrips + 2 * kTerms) {
    const int plane = part - Team::kStrips;  // chunk and term
    from = reinterpret_cast<const std::byte*>(
        p.input.data +
        (plane * p.input.positions + static_cast<std::size_t>(item.tile.first)) * kChunkColumns);
    step = 2 * kTerms * p.input.positions * kChunkRowBytes;
    bytes = static_cast<std::uint32_t>(columns * kChunkRowBytes);
    to = static_cast<std::uint32_t>(plane) * bytes;
  }
#pragma unroll 1
  for (int block = 0; block < p.weights.k_blocks; ++block, ring.next()) {
    __syncwarp();  // a lane without a copy holds nobody up, and must not miss a phase
    wait_for(ring.empty + 8 * ring.stage, ring.parity ^ 1);
    if (bytes > 0)
      copy_bulk(ring.here() + to, from, bytes, ring.full + 8 * ring.stage);
    else if (part < Team::kStrips)
      arrive(ring.full + 8 * ring.stage);
    from += step;
  }
}

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

/// Half a block is unpacked while the half before it is multiplied, where the registers have room for that.
template <Storage kStorage, class T>
__device__ __forceinline__ void multiply_tile(const WarpgroupProduct& p, const WarpgroupItem& item,
                                              Ring& ring) {
  using Team = typename T::Team;
  TileSums<T> sums = {};
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const SharedBytes blocks{ring.stages_at + ring.stage_bytes -
                           (Team::kStrips - warp) * block_bytes(kStorage)};
  const auto unpack = [&](int half) {
    return unpack_half<kStorage>(blocks + ring.stage * ring.stage_bytes, half);
  };
  Weights<kStorage> first, second;
  const auto begin = [&] {
    wait_for(ring.full + 8 * ring.stage, ring.parity);
    first = unpack(0);
  };
  if constexpr (T::kAhead) begin();
#pragma unroll 1
  for (int block = 1; block <= p.weights.k_blocks; ++block) {
    if constexpr (!T::kAhead) begin();
    const std::uint32_t tokens = ring.here(), done = ring.empty + 8 * ring.stage;
    add_half<kStorage, T>(first, tokens_at(tokens), sums, [&] {
      if constexpr (T::kAhead) second = unpack(1);
    });
    if constexpr (!T::kAhead) second = unpack(1);
    ring.next();
    add_half<kStorage, T>(second, tokens_at(tokens + T::kChunkBytes), sums, [&] {
      if constexpr (T::kAhead)
        if (block < p.weights.k_blocks) begin();
    });
    __syncwarp();
    if (threadIdx.x % kLanes == 0) arrive(done);
  }
  if (p.down)
    write_out<kStorage, T>(p, item, sums);
  else
    write_mid<kStorage, T>(p, item, sums);
}

/// A warpgroup without strips lets the others' stages go by.
__device__ inline void skip_tile(const WarpgroupProduct& p, Ring& ring) {
#pragma unroll 1
  for (int block = 0; block < p.weights.k_blocks; ++block, ring.next()) {
    wait_for(ring.full + 8 * ring.stage, ring.parity);
    __syncwarp();
    if (threadIdx.x % kLanes == 0) arrive(ring.empty + 8 * ring.stage);
  }
}

template <class Team, Storage kStorage, int kTerms>
__device__ __forceinline__ void multiply_any(const WarpgroupProduct& p, const WarpgroupItem& item,
                                             Ring& ring) {
  if (static_cast<int>(threadIdx.x) / kWarpgroupLanes >= item.fours) return skip_tile(p, ring);
  const auto with = [&]<class T>(T) { multiply_tile<kStorage, T>(p, item, ring); };
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

/// Tiles one after the other, the fours of each shared out evenly among `groups`.
__device__ inline WarpgroupItem item_of(const WarpgroupProduct& p, int i, int groups) {
  const Tile* at = p.tiles + i / groups;
  const int group = i % groups, fours = fours_of(p), first = group * fours / groups;
  WarpgroupItem item{.tile = {load_fresh(&at->expert), load_fresh(&at->first), load_fresh(&at->count)},
                     .first_four = first,
                     .fours = (group + 1) * fours / groups - first,
                     .expert = nullptr};
  item.expert = p.experts + item.tile.expert * p.expert_bytes;
  return item;
}

template <class Team, Storage kStorage, int kTerms>
__global__ void __launch_bounds__(Team::kThreads, 1)
    multiply_warpgroups(const __grid_constant__ WarpgroupProduct p) {
  extern __shared__ __align__(1024) std::byte stages[];
  __shared__ std::uint64_t barriers[2][kMostStages];
  Ring ring{.stages_at = hold(shared_address(stages)),
            .full = shared_address(barriers[0]),
            .empty = shared_address(barriers[1]),
            .stages = p.stages,
            .stage_bytes = p.stage_bytes};
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      init_barrier(ring.full + 8 * i, Team::kStrips + 2 * kTerms);
      init_barrier(ring.empty + 8 * i, Team::kWarps);
    }
    show_to_copies();
  }
  __syncthreads();
  wait_for_earlier();
  start_later();
  const int groups = (fours_of(p) + Team::kWarpgroups - 1) / Team::kWarpgroups;
  const int items = load_fresh(p.tile_count) * groups;
  if (static_cast<int>(threadIdx.x) / kLanes >= Team::kWarps) {
    give_registers<Team::kFillerRegisters>();
    show_writes_to_copies();
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x))
      fill<Team, kStorage, kTerms>(p, item_of(p, i, groups), ring);
  } else {
    take_registers<Team::kConsumerRegisters>();
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x))
      multiply_any<Team, kStorage, kTerms>(p, item_of(p, i, groups), ring);
  }
}

template <class Team, Storage kStorage, int kTerms>
WarpgroupKernel team_kernel() {
  return {reinterpret_cast<const void*>(multiply_warpgroups<Team, kStorage, kTerms>), Team::kThreads,
          Team::kStrips * block_bytes(kStorage)};
}

template <Storage kStorage>
WarpgroupKernel warpgroup_kernel_of(TileLimits tiles) {
  const bool many = tiles.most <= most_columns_of_many(tiles.terms);
  if (tiles.terms == 1)
    return many ? team_kernel<ManyWarpgroups, kStorage, 1>() : team_kernel<FewWarpgroups, kStorage, 1>();
  return many ? team_kernel<ManyWarpgroups, kStorage, kMostTerms>()
              : team_kernel<FewWarpgroups, kStorage, kMostTerms>();
}

}  // namespace sluice::cuda
