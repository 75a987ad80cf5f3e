// SPDX-License-Identifier: Apache-2.0
// Many tokens on SM90 in four launches: lists and inputs, two products on warpgroups (wgmma), and the sum.
// This is the border between the host and the kernels, plain pointers into the card's memory.
//
// Sums of chains are those of the other kernels (multiply.h), in the same order: 64 columns of a term by the
// tensor core, the terms from the last to the first, 64 columns after another. Sums of rows (SumsOf) are not.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "experts/cuda/mma/chunks.h"
#include "experts/cuda/mma/multiply.h"
#include "sluice/tensor.h"

namespace sluice::cuda {

/// Tokens of the largest tile of chains for an input of so many terms: its sums and those of 64 columns fit a
/// thread's registers. A tile takes a multiple of 16 columns of products.
constexpr int most_columns(int terms) { return terms == 1 ? 160 : 64; }
inline constexpr int kColumnStep = 16;

/// The warpgroups of a block, of four strips each, and one more that fills its ring. With few tokens a tile
/// twice as many fit: what a warp unpacks keeps it from what it multiplies, and others have to.
inline constexpr int kWarpgroupLanes = 128, kWarpgroupStrips = 4, kMostStages = 16;
template <int kCount>
struct TeamOf {
  static constexpr int kWarpgroups = kCount, kStrips = kCount * kWarpgroupStrips;
  static constexpr int kWarps = kCount * kWarpgroupLanes / kLanes;
  static constexpr int kThreads = (kCount + 1) * kWarpgroupLanes;
  /// Of the registers that threads are started with the filling ones hand some to the others.
  static constexpr int kFillerRegisters = 24, kConsumerRegisters = kCount == 3 ? 160 : 80;
};
using FewWarpgroups = TeamOf<3>;
using ManyWarpgroups = TeamOf<6>;
/// Columns of the largest tile of the larger team.
constexpr int most_columns_of_many(int terms) { return terms == 1 ? 32 : 16; }

/// Experts whose lists fit a block's shared memory.
inline constexpr int kMostArrangedExperts = 2048;

/// From ids and rows to positions, tiles and chunks.
struct Arrange {
  const std::int32_t* ids;         // [slots] global
  const std::int32_t* expert_map;  // [experts] -> local or -1; null: the same
  int slots, top_k, experts, local_experts;
  int most[2];            // columns of a tile of the up and down product
  std::int32_t* local;    // [slots] local expert, or -1
  std::int32_t* slot_of;  // [positions]
  std::int32_t* counts;   // [2]: tiles of the two products
  Tile* tiles;            // [2, most_tiles]
  int most_tiles;
  const std::byte* rows;  // the input's
  std::ptrdiff_t row_stride;
  DType dtype;
  int width;                // columns that are there
  const float* weights;     // [slots] factors of the input; null: ones
  const std::byte* orders;  // as in Stage
  std::int64_t expert_bytes;
  Chunks out;
};
cudaError_t arrange(const Arrange& arrange, cudaStream_t stream);

/// Positions that so many slots take, and what tiles are read beyond them.
std::size_t positions_for(std::size_t slots, int local_experts);

/// What a tensor core sums up by itself: 64 columns, which are added to others in float32, or a row. It cuts
/// what it adds to the exponent of the sum so far: of a row that is more than float32 rounds, and far less
/// than bf16 does.
enum class SumsOf : std::uint8_t { chains, rows };

/// Whether sums can be of rows: scales are in the weights.
constexpr bool scales_in_weights(Storage storage) {
  return !is_integer(storage) && storage != Storage::fp8_scaled;
}
/// Columns of the tiles that there are kernels for.
inline constexpr int kRowColumns[] = {16, 32, 48, 64, 80, 96, 112, 128, 160, 192};

struct WarpgroupProduct {
  const std::byte* experts;  // the first
  std::int64_t expert_bytes;
  StripsLayout weights;
  Chunks input;
  const std::int32_t* slot_of;  // position -> slot
  const Tile* tiles;
  const std::int32_t* tile_count;
  bool down;
  SumsOf sums;
  Activation activation;
  ActivationParams params;
  Chunks mid;  // where gate and up go, activated; unused for down
  float* out;  // [slots, out_stride] where down goes
  std::size_t out_stride;
  int stages, stage_bytes;  // of the ring: set by start_warpgroups
};

/// A kernel for a storage, a number of terms and the columns of the largest tile; its threads, and the bytes
/// of a stage's weights. No function: there is none.
struct WarpgroupKernel {
  const void* function = nullptr;
  int threads = 0, weight_bytes = 0;
};
struct TileLimits {
  int terms, most;  // Arrange::most of the product
  SumsOf sums = SumsOf::chains;
};
WarpgroupKernel warpgroup_kernel(Storage storage, TileLimits tiles);

/// Whether the current card and this build have code for both products of a layer.
bool has_warpgroups(const ExpertLayout& layout);

/// `most` is Arrange::most of the product.
cudaError_t start_warpgroups(WarpgroupProduct product, int most, cudaStream_t stream);

WarpgroupKernel warpgroup_fp4_e8m0(TileLimits tiles);
WarpgroupKernel warpgroup_fp4_e4m3(TileLimits tiles);
WarpgroupKernel warpgroup_fp8_scaled(TileLimits tiles);
WarpgroupKernel warpgroup_fp8_e8m0(TileLimits tiles);
WarpgroupKernel warpgroup_int4_g32(TileLimits tiles);
WarpgroupKernel warpgroup_int4_g128(TileLimits tiles);
WarpgroupKernel warpgroup_int8_g32(TileLimits tiles);
WarpgroupKernel warpgroup_int8_g128(TileLimits tiles);

}  // namespace sluice::cuda
