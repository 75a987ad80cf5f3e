// SPDX-License-Identifier: Apache-2.0
// From ids and rows to what the warpgroups read: every slot's position, slots grouped by expert in ascending
// order and experts at multiples of eight, the tiles they are cut into, and every position's row in chunks.
//
// A block has a stretch of slots. It counts all slots and those before its own, so it knows the positions of
// its own without asking others, and the copying is shared out evenly however experts are chosen.
#include <cuda_runtime.h>

#include <algorithm>

#include "experts/cuda/mma/element.cuh"
#include "experts/cuda/mma/ptx.cuh"
#include "experts/cuda/mma/start.h"
#include "experts/cuda/mma/warpgroup.h"

namespace sluice::cuda {
namespace {

constexpr int kArrangeThreads = 1024, kArrangeWarps = kArrangeThreads / 32;
/// Slots whose positions are found, and then their rows copied.
constexpr int kSlotsAtOnce = 512;

/// Of a block: [experts] each.
struct Counts {
  int *all, *before, *first, *tiles[2];

  __device__ Counts(int* memory, int experts)
      : all(memory),
        before(memory + experts),
        first(memory + 2 * experts),
        tiles{memory + 3 * experts, memory + 4 * experts} {}
};
constexpr int kCountsOfExpert = 5;

struct Stretch {
  int begin, end;
};

__device__ int local_of(const Arrange& a, int slot) {
  return local_expert(a.ids[slot], a.expert_map, a.experts, a.local_experts);
}

__device__ void count(const Arrange& a, Stretch own, Counts counts) {
  for (int e = static_cast<int>(threadIdx.x); e < a.local_experts; e += kArrangeThreads)
    counts.all[e] = counts.before[e] = 0;
  __syncthreads();
  for (int slot = static_cast<int>(threadIdx.x); slot < a.slots; slot += kArrangeThreads) {
    const int local = local_of(a, slot);
    if (local < 0) continue;
    atomicAdd(&counts.all[local], 1);
    if (slot < own.begin) atomicAdd(&counts.before[local], 1);
  }
  __syncthreads();
}

__device__ int tiles_of(int tokens, int most) { return (tokens + most - 1) / most; }

/// What comes before every expert, of positions (0) or of tiles of a product (1, 2). A warp's work; returns
/// the sum.
__device__ int scan(const Arrange& a, const int* counts, int which, int* before) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int sum = 0;
  for (int first = 0; first < a.local_experts; first += 32) {
    const int e = first + lane;
    const int tokens = e < a.local_experts ? counts[e] : 0;
    const int own = which == 0 ? (tokens + kPositionStep - 1) / kPositionStep * kPositionStep
                               : tiles_of(tokens, a.most[which - 1]);
    int through = own;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, through, step);
      if (lane >= step) through += other;
    }
    if (e < a.local_experts) before[e] = sum + through - own;
    sum += __shfl_sync(~0u, through, 31);
  }
  return sum;
}

/// An expert's tokens in tiles of nearly the same size.
__device__ void write_tiles(const Arrange& a, int product, int expert, const Counts& counts) {
  const int tokens = counts.all[expert], tiles = tiles_of(tokens, a.most[product]);
  if (tiles == 0) return;
  const int each = ((tokens + tiles - 1) / tiles + kPositionStep - 1) / kPositionStep * kPositionStep;
  Tile* to = a.tiles + static_cast<std::ptrdiff_t>(product) * a.most_tiles + counts.tiles[product][expert];
  for (int i = 0; i < tiles; ++i)
    to[i] = {expert, counts.first[expert] + i * each, min(each, tokens - i * each)};
}

/// Positions of up to kSlotsAtOnce slots, in order: one warp's work. `before` moves on.
__device__ void place(const Arrange& a, Stretch some, Counts counts, int* positions) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = some.begin; first < some.end; first += 32) {
    const int slot = first + lane, local = slot < some.end ? local_of(a, slot) : -1;
    const unsigned same = __match_any_sync(~0u, local);
    if (slot < some.end) {
      const int position =
          local < 0 ? -1 : counts.first[local] + counts.before[local] + __popc(same & ((1u << lane) - 1));
      positions[slot - some.begin] = position;
      a.local[slot] = local;
      if (position >= 0) a.slot_of[position] = slot;
    }
    __syncwarp();
    if (local >= 0 && lane == __ffs(static_cast<int>(same)) - 1) counts.before[local] += __popc(same);
    __syncwarp();
  }
}

/// Piece `piece` of a block, as the input has it and with nothing to multiply: four words of two bf16.
__device__ uint4 copied_piece(const Arrange& a, const std::byte* row, int block, int piece) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = block * kBlockColumns + column_of(a.out.order, piece, i);
    words[i] = column < a.width ? reinterpret_cast<const std::uint32_t*>(row)[column / 2] : 0;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Any piece of an input of any type, as terms.
__device__ void write_piece(const Arrange& a, int slot, std::size_t position, int block, int piece) {
  const std::byte* row = a.rows + slot / a.top_k * a.row_stride;
  const std::int32_t* order =
      a.orders == nullptr ? nullptr
                          : reinterpret_cast<const std::int32_t*>(a.orders + a.local[slot] * a.expert_bytes);
  const InputColumns in{a.dtype, a.width, order, a.weights == nullptr ? nullptr : a.weights + slot};
  for (int i = 0; i < kPieceColumns; ++i) {
    const int k = block * kBlockColumns + column_of(a.out.order, piece, i / 2) + i % 2;
    const float value = input_value(in, row, k);
    const Terms terms = split(value);
    for (int term = 0; term < kMostTerms; ++term)
      if (term < a.out.terms) a.out.data[a.out.at(block, piece, term, position) + i] = terms.of[term];
  }
}

/// The rows of some slots: a warp each, several pieces of a lane under way at a time.
__device__ void copy_rows(const Arrange& a, Stretch some, const int* positions) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool as_it_is = a.dtype == DType::bf16 && a.out.terms == 1 && a.weights == nullptr &&
                        a.orders == nullptr && a.width % 2 == 0 && a.row_stride % 4 == 0 &&
                        reinterpret_cast<std::uintptr_t>(a.rows) % 4 == 0;
  for (int slot = some.begin + static_cast<int>(threadIdx.x) / 32; slot < some.end; slot += kArrangeWarps) {
    if (positions[slot - some.begin] < 0) continue;
    const auto position = static_cast<std::size_t>(positions[slot - some.begin]);
    const std::byte* row = a.rows + slot / a.top_k * a.row_stride;
#pragma unroll 4
    for (int i = lane; i < a.out.blocks * kBlockPieces; i += 32) {
      const int block = i / kBlockPieces, piece = i % kBlockPieces;
      if (as_it_is)
        *reinterpret_cast<uint4*>(a.out.data + a.out.at(block, piece, 0, position)) =
            copied_piece(a, row, block, piece);
      else
        write_piece(a, slot, position, block, piece);
    }
  }
}

__global__ void __launch_bounds__(kArrangeThreads) arrange_slots(const __grid_constant__ Arrange a) {
  extern __shared__ int memory[];
  __shared__ int positions[kSlotsAtOnce];
  const Counts counts(memory, a.local_experts);
  wait_for_earlier();
  start_later();
  const int blocks = static_cast<int>(gridDim.x), own_slots = (a.slots + blocks - 1) / blocks;
  const int begin = min(static_cast<int>(blockIdx.x) * own_slots, a.slots);
  const Stretch own{begin, min(begin + own_slots, a.slots)};
  count(a, own, counts);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == 0) scan(a, counts.all, 0, counts.first);
  if (blockIdx.x == 0 && (warp == 1 || warp == 2)) {
    const int tiles = scan(a, counts.all, warp, counts.tiles[warp - 1]);
    if (threadIdx.x % 32 == 0) a.counts[warp - 1] = tiles;
  }
  __syncthreads();
  if (blockIdx.x == 0)
    for (int i = static_cast<int>(threadIdx.x); i < 2 * a.local_experts; i += kArrangeThreads)
      write_tiles(a, i / a.local_experts, i % a.local_experts, counts);
  for (int first = own.begin; first < own.end; first += kSlotsAtOnce) {
    const Stretch some{first, min(first + kSlotsAtOnce, own.end)};
    if (warp == 0) place(a, some, counts, positions);
    __syncthreads();
    copy_rows(a, some, positions);
    __syncthreads();
  }
}

}  // namespace

cudaError_t arrange(const Arrange& arrange, cudaStream_t stream) {
  const auto shared = static_cast<std::size_t>(kCountsOfExpert * arrange.local_experts) * sizeof(int);
  static_assert(kCountsOfExpert * kMostArrangedExperts * sizeof(int) <= 46 * 1024);
  // Two blocks a processor, if that leaves every block some rows to copy.
  const dim3 grid(static_cast<unsigned>(std::clamp(arrange.slots / 8, 1, 264)));
  return start_grid(reinterpret_cast<const void*>(arrange_slots), &arrange, grid, {kArrangeThreads, shared},
                    stream, After::everything);
}

std::size_t positions_for(std::size_t slots, int local_experts) {
  const auto experts = static_cast<std::size_t>(local_experts);
  const std::size_t rows = slots + (kPositionStep - 1) * std::min(slots, experts);
  return (rows + kPositionStep - 1) / kPositionStep * kPositionStep + kColumnStep;
}

}  // namespace sluice::cuda
