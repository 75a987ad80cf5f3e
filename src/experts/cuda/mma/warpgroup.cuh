// SPDX-License-Identifier: Apache-2.0
// A product on warpgroups (wgmma): weights become bf16 in registers, which are its A operand, and tokens are
// read from shared memory, up to 192 at a time. So a weight is unpacked once for all of them, and neither the
// tokens nor the multiplying take instructions of their own.
//
// A block has three or six warpgroups, of four strips each, and one more that fills a ring of shared memory
// by bulk copies: a stage is 128 columns of the block's strips and of the tile's tokens. It runs ahead, into
// the next tile. While one warpgroup unpacks or adds up another multiplies.
//
// grid: a block a processor, groups of a block's strips of a tile in turn
// block: TeamOf::kThreads    shared: the ring
#pragma once

#include <iterator>
#include <type_traits>
#include <utility>

#include "experts/cuda/mma/warpgroup_sums.cuh"

namespace sluice::cuda {

/// What a lane of the filling warps does for a block of columns: a strip, or a chunk of a term.
/// Copies of a warp start one after the other, so four warps share them: one alone held the others up (928 us
/// became 847 at 256 tokens).
template <class Sums>
__device__ void fill(const WarpgroupProduct& p, const WarpgroupItem& item, Ring& ring) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  const int part = 4 * lane + warp % 4;
  using Team = typename Sums::Team;
  constexpr Storage kStorage = Sums::kStorage;
  constexpr int kTerms = Sums::kTerms;
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
    bytes = static_cast<std::uint32_t>(columns_for(item.tile.count) * kChunkRowBytes);
    to = static_cast<std::uint32_t>(plane * Sums::stage_columns(item.tile.count) * kChunkRowBytes);
  }
#pragma unroll 1
  for (int block = 0; block < p.weights.k_blocks; ++block, ring.next()) {
    __syncwarp();  // a lane without a copy holds nobody up, and must not miss a phase
    wait_for(ring.empty(), ring.parity ^ 1);
    if (bytes > 0)
      copy_bulk(ring.here() + to, from, bytes, ring.full());
    else if (part < Team::kStrips)
      arrive(ring.full());
    from += step;
  }
}

/// What the blocks share out: every group of a block's strips of every tile.
struct Items {
  int count, groups;  // of a tile
};

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

/// A warpgroup without strips lets the others' stages go by.
__device__ inline void skip_tile(const WarpgroupProduct& p, Ring& ring) {
#pragma unroll 1
  for (int block = 0; block < p.weights.k_blocks; ++block, ring.next()) {
    wait_for(ring.full(), ring.parity);
    __syncwarp();
    if (threadIdx.x % kLanes == 0) arrive(ring.empty());
  }
}

/// The work of a warpgroup that multiplies. The next item is read while the last one's sums are written.
template <class Sums>
__device__ __forceinline__ void multiply_items(const WarpgroupProduct& p, const Items& items, Ring& ring) {
  int i = static_cast<int>(blockIdx.x);
  if (i >= items.count) return;
  WarpgroupItem item = item_of(p, i, items.groups), next;
#pragma unroll 1
  while (true) {
    i += static_cast<int>(gridDim.x);
    const auto read_next = [&] { next = item_of(p, min(i, items.count - 1), items.groups); };
    if (static_cast<int>(threadIdx.x) / kWarpgroupLanes < item.fours) {
      prefetch_ends(p, item);
      Sums::multiply(p, item, ring, read_next);
    } else {
      skip_tile(p, ring);
      read_next();
    }
    if (i >= items.count) return;
    item = next;
  }
}

template <class Sums>
__global__ void __launch_bounds__(Sums::Team::kThreads, 1)
    multiply_warpgroups(const __grid_constant__ WarpgroupProduct p) {
  using Team = typename Sums::Team;
  extern __shared__ __align__(1024) std::byte stages[];
  __shared__ std::uint64_t barriers[2][kMostStages];
  Ring ring{.stages_at = hold(shared_address(stages)),
            .barriers = hold(shared_address(barriers)),
            .stages = p.stages,
            .stage_bytes = p.stage_bytes};
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      init_barrier(ring.barriers + 8 * i, Team::kStrips + 2 * Sums::kTerms);
      init_barrier(ring.barriers + 8 * (kMostStages + i), Team::kWarps);
    }
    show_to_copies();
  }
  __syncthreads();
  wait_for_earlier();
  start_later();
  Items items{0, (fours_of(p) + Team::kWarpgroups - 1) / Team::kWarpgroups};
  items.count = load_fresh(p.tile_count) * items.groups;
  if (static_cast<int>(threadIdx.x) / kLanes >= Team::kWarps) {
    give_registers<Team::kFillerRegisters>();
    show_writes_to_copies();
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x); i < items.count; i += static_cast<int>(gridDim.x))
      fill<Sums>(p, item_of(p, i, items.groups), ring);
  } else {
    take_registers<Team::kConsumerRegisters>();
    multiply_items<Sums>(p, items, ring);
  }
}

template <class Sums>
WarpgroupKernel kernel_of() {
  return {reinterpret_cast<const void*>(multiply_warpgroups<Sums>), Sums::Team::kThreads,
          Sums::Team::kStrips * block_bytes(Sums::kStorage)};
}

template <Storage kStorage, int kTerms>
WarpgroupKernel chain_kernel(int most) {
  return most <= most_columns_of_many(kTerms) ? kernel_of<ChainSums<kStorage, ManyWarpgroups, kTerms>>()
                                              : kernel_of<ChainSums<kStorage, FewWarpgroups, kTerms>>();
}

template <Storage kStorage, int kMost>
using RowsOf =
    RowSums<kStorage, std::conditional_t<kMost <= most_columns_of_many(1), ManyWarpgroups, FewWarpgroups>,
            kMost>;

/// The kernel for one of kRowColumns.
template <Storage kStorage, std::size_t... kAt>
WarpgroupKernel row_kernel(int most, std::index_sequence<kAt...>) {
  WarpgroupKernel kernel;
  ((kRowColumns[kAt] == most ? void(kernel = kernel_of<RowsOf<kStorage, kRowColumns[kAt]>>()) : void()), ...);
  return kernel;
}

template <Storage kStorage>
WarpgroupKernel warpgroup_kernel_of(TileLimits tiles) {
  if constexpr (scales_in_weights(kStorage))
    if (tiles.sums == SumsOf::rows)
      return row_kernel<kStorage>(tiles.most, std::make_index_sequence<std::size(kRowColumns)>{});
  return tiles.terms == 1 ? chain_kernel<kStorage, 1>(tiles.most)
                          : chain_kernel<kStorage, kMostTerms>(tiles.most);
}

}  // namespace sluice::cuda
