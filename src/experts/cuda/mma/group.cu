// SPDX-License-Identifier: Apache-2.0
// From ids to lists: which slots an expert has, in ascending order, and the tiles they are cut into. Every
// block counts all slots and places those of its experts, so there is one launch whatever the sizes are.
#include <cuda_runtime.h>

#include <algorithm>

#include "experts/cuda/mma/multiply.h"
#include "experts/cuda/mma/ptx.cuh"
#include "experts/cuda/mma/start.h"

namespace sluice::cuda {
namespace {

constexpr int kGroupThreads = 1024, kGroupWarps = kGroupThreads / 32;
/// Of an expert: its slots, and its tiles of every class for both products.
constexpr int kCounted = 1 + 2 * kWidths;

__device__ int local_of(const Group& g, int slot) {
  return local_expert(g.ids[slot], g.expert_map, g.experts, g.local_experts);
}

/// The narrowest class for a count of tokens that the widest one holds.
__device__ int class_of(int tokens) {
  int width = 0;
  while (tile_tokens(width) < tokens) ++width;
  return width;
}

/// Tiles of a class for an expert's tokens: whole ones of the widest, and one for what is left.
__device__ int tiles_of(int tokens, int width, int widest_class) {
  const int whole = tokens / tile_tokens(widest_class), left = tokens % tile_tokens(widest_class);
  return (width == widest_class ? whole : 0) + (left > 0 && class_of(left) == width ? 1 : 0);
}

__device__ int widest_of(const Group& g, int product) { return product == 0 ? g.up_widest : g.down_widest; }

/// What comes before every expert, in its row of `before`; the sum of all.
__device__ int scan(const Group& g, const int* counts, int which, int* before) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int sum = 0;
  for (int first = 0; first < g.local_experts; first += 32) {
    const int e = first + lane;
    int own = 0;
    if (e < g.local_experts)
      own = which == 0 ? counts[e]
                       : tiles_of(counts[e], (which - 1) % kWidths, widest_of(g, (which - 1) / kWidths));
    int through = own;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, through, step);
      if (lane >= step) through += other;
    }
    if (e < g.local_experts) before[e] = sum + through - own;
    sum += __shfl_sync(~0u, through, 31);
  }
  return sum;
}

/// Writes an expert's slots, ascending: every warp those of a stretch of its own.
__device__ void place(const Group& g, int expert, int first) {
  __shared__ int found[kGroupWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int stretch = (g.slots + kGroupThreads - 1) / kGroupThreads * 32;
  const int begin = warp * stretch, end = min(begin + stretch, g.slots);
  int count = 0;
  for (int slot = begin + lane; slot - lane < end; slot += 32)
    count += __popc(__ballot_sync(~0u, slot < end && local_of(g, slot) == expert));
  if (lane == 0) found[warp] = count;
  __syncthreads();
  for (int w = 0; w < warp; ++w) first += found[w];
  for (int slot = begin + lane; slot - lane < end; slot += 32) {
    const bool own = slot < end && local_of(g, slot) == expert;
    const unsigned all = __ballot_sync(~0u, own);
    if (own) {
      const int position = first + __popc(all & ((1u << lane) - 1));
      g.positions[position] = slot;
      g.rows[position] = slot / g.top_k;
    }
    first += __popc(all);
  }
  __syncthreads();
}

__device__ void write_tiles(const Group& g, int expert, int tokens, int first, const int* before) {
  for (int product = 0; product < 2; ++product) {
    const int widest_class = widest_of(g, product), most = tile_tokens(widest_class);
    const int whole = tokens / most, left = tokens % most;
    const auto list = [&](int width) {
      return g.tiles + (product * kWidths + width) * std::int64_t{g.most_tiles} +
             before[(1 + product * kWidths + width) * g.local_experts + expert];
    };
    for (int i = static_cast<int>(threadIdx.x); i < whole; i += kGroupThreads)
      list(widest_class)[i] = {expert, first + i * most, most};
    if (threadIdx.x == 0 && left > 0) {
      const int width = class_of(left);
      list(width)[width == widest_class ? whole : 0] = {expert, first + whole * most, left};
    }
  }
}

__global__ void __launch_bounds__(kGroupThreads) group_slots(const __grid_constant__ Group g) {
  extern __shared__ int counts[];  // [experts], and then [kCounted, experts] what comes before
  int* const before = counts + g.local_experts;
  wait_for_earlier();
  start_later();
  for (int e = static_cast<int>(threadIdx.x); e < g.local_experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  for (int slot = static_cast<int>(threadIdx.x); slot < g.slots; slot += kGroupThreads) {
    const int local = local_of(g, slot);
    if (blockIdx.x == 0) g.local[slot] = local;
    if (local >= 0) atomicAdd(&counts[local], 1);
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kCounted) {
    const int all = scan(g, counts, warp, before + warp * g.local_experts);
    if (blockIdx.x == 0 && threadIdx.x % 32 == 0) g.counts[warp == 0 ? kCounted - 1 : warp - 1] = all;
  }
  __syncthreads();
  for (int e = static_cast<int>(blockIdx.x); e < g.local_experts; e += static_cast<int>(gridDim.x)) {
    if (counts[e] == 0) continue;
    place(g, e, before[e]);
    write_tiles(g, e, counts[e], before[e], before);
  }
}

}  // namespace

int most_tiles(int slots, int local_experts) {
  return std::min(slots, slots / tile_tokens(0) + local_experts);
}

cudaError_t group(const Group& group, cudaStream_t stream) {
  const auto shared = static_cast<std::size_t>((1 + kCounted) * group.local_experts) * sizeof(int);
  const auto* function = reinterpret_cast<const void*>(group_slots);
  if (shared > 48 * 1024)
    if (const cudaError_t error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(shared));
        error != cudaSuccess)
      return error;
  const dim3 grid(static_cast<unsigned>(std::clamp(group.local_experts, 1, 128)));
  return start_grid(function, &group, grid, {kGroupThreads, shared}, stream, After::everything);
}

}  // namespace sluice::cuda
