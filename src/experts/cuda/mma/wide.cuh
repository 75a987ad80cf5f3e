// SPDX-License-Identifier: Apache-2.0
// The product for 9 to 128 tokens of an expert: a block has eight strips and the tokens of a tile, and goes
// over the columns 64 at a time, weights and inputs in a ring of shared memory by cp.async. A warp has one
// strip or two and up to 64 tokens, so what it unpacks is multiplied up to eight times.
//
// grid: as many blocks as the card holds, groups of eight strips of a tile in turn
// block: Wide::kThreads    shared: Wide::shared_bytes, the ring, and after it is done with the sums
#pragma once

#include "experts/cuda/mma/epilogue.cuh"

namespace sluice::cuda {

inline constexpr int kWideStrips = 8;

template <Storage kStorage, int kWidth, int kInputTerms>
struct Wide {
  static constexpr int kTokens = tile_tokens(kWidth), kTerms = kInputTerms;
  static constexpr int kWarpStrips = kTokens >= 32 ? 2 : 1;
  static constexpr int kWarpTiles = (kTokens < 64 ? kTokens : 64) / 8;  // of eight tokens
  static constexpr int kWarpRows = kWideStrips / kWarpStrips, kWarpColumns = kTokens / (8 * kWarpTiles);
  static constexpr int kThreads = kWarpRows * kWarpColumns * kLanes;
  static constexpr int kMinBlocks = kThreads == 256 && kTokens > 16 ? 1 : kTokens == 16 ? 2 : 3;

  // A stage: the values of half a block of each strip, their scales, the tokens' 64 columns.
  static constexpr int kValues = value_bytes(kStorage) / kHalves, kScales = scale_bytes(kStorage);
  static constexpr int kScalesAt = kWideStrips * kValues, kInputsAt = kScalesAt + kWideStrips * kScales;
  static constexpr int kRowBytes = 128, kTermBytes = kTokens * kRowBytes;
  static constexpr int kStage = kInputsAt + kTerms * kTermBytes;

  /// The sums of a tile, [tokens][rows], on their way out. Four more floats a row: other banks.
  static constexpr int kSumsStride = kWideStrips * kStripRows + 4;
  static constexpr int kSums = kTokens * kSumsStride * 4;

  /// What leaves room for two more blocks on SM90 and one on others, or fits the 99 KB that a block may have
  /// on SM86 and SM89.
  static constexpr int kStages = [] {
    const int shared = 66 * 1024 / kStage, alone = 98 * 1024 / kStage;
    const int fits = kTokens <= 64 && shared >= 3 ? shared : alone;
    return fits < 2 ? 2 : fits > 8 ? 8 : fits;
  }();
  static constexpr std::size_t shared_bytes() {
    const int ring = kStages * kStage;
    return static_cast<std::size_t>(ring > kSums ? ring : kSums);
  }
};

/// A block's view of its work.
struct WideItem {
  Tile tile;
  int first_strip;
  const std::byte* expert;
};

/// Where the 16 bytes of piece i, columns 32 t + 8 i on, of a token lie in its row of a stage: those that
/// eight lanes read at once are in all banks.
__device__ inline int place_of(int token, int t, int i) { return ((i * 4 + t) ^ (token & 1) << 2) * 16; }

/// What a thread copies into every stage, in bytes from the first block of the first strip, from the start of
/// a row, and from the start of the stage.
template <class W, Storage kStorage>
struct Share {
  static constexpr int kPieces = W::kValues / 16, kScalePieces = W::kScales / 16;
  static constexpr int kValueCopies = kWideStrips * kPieces / W::kThreads;
  static constexpr int kRows = (W::kTokens * 8 + W::kThreads - 1) / W::kThreads;
  static constexpr int kRowStep = W::kThreads / 8;

  std::uint32_t values[kValueCopies], scales;
  int column;  // of step 0

  __device__ Share(const Product& p, int first_strip) {
    const std::uint32_t thread = threadIdx.x;
    const std::uint32_t last =
        static_cast<std::uint32_t>(min(kWideStrips, p.weights.strips - first_strip)) - 1;
    const std::uint32_t strip_bytes = static_cast<std::uint32_t>(p.weights.k_blocks * block_bytes(kStorage));
#pragma unroll
    for (int i = 0; i < kValueCopies; ++i) {
      const std::uint32_t piece = thread + i * W::kThreads;
      values[i] = min(piece / kPieces, last) * strip_bytes + piece % kPieces * 16;
    }
    scales = 0;
    if constexpr (kScalePieces > 0)
      scales =
          min(thread / kScalePieces, last) * strip_bytes + value_bytes(kStorage) + thread % kScalePieces * 16;
    column = static_cast<int>(32 * (thread / 2 % 4) + 8 * (thread % 2));
  }

  __device__ void fetch(const Product& p, const std::byte* blocks, const std::uint16_t* const* rows, int step,
                        std::uint32_t stage) const {
    const std::uint32_t thread = threadIdx.x, block = static_cast<std::uint32_t>(step / kHalves);
    const std::uint32_t half = static_cast<std::uint32_t>(step % kHalves);
    const std::uint32_t at = block * block_bytes(kStorage);
    const int from = step / kHalves * kBlockColumns + 16 * (step % kHalves) + column;
    const bool there = from < p.input.columns;
    const std::uint16_t* row[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n)
      row[n] = rows[min(thread / 8 + n * kRowStep, W::kTokens - 1)] + (there ? from : 0);
#pragma unroll
    for (int i = 0; i < kValueCopies; ++i)
      copy_async(stage + 16 * (thread + i * W::kThreads), blocks + (values[i] + at + half * W::kValues));
    if constexpr (kScalePieces > 0)
      if (thread < kWideStrips * kScalePieces)
        copy_async(stage + W::kScalesAt + thread * 16, blocks + (scales + at));
    // A thread always fetches the same piece, of tokens an even distance apart.
    const std::uint32_t token = thread / 8;
    const std::uint32_t to =
        stage + W::kInputsAt + token * W::kRowBytes +
        place_of(static_cast<int>(token), static_cast<int>(thread / 2 % 4), static_cast<int>(thread % 2));
    if (W::kTokens * 8 >= W::kThreads || token < W::kTokens) {
#pragma unroll
      for (int n = 0; n < kRows; ++n)
#pragma unroll
        for (int term = 0; term < W::kTerms; ++term)
          copy_async(to + n * kRowStep * W::kRowBytes + term * W::kTermBytes, row[n] + term * p.input.plane,
                     there);
    }
  }
};

template <class W>
struct WideSums {
  float of[W::kWarpStrips][W::kWarpTiles][4] = {};
};

/// One stage: the sums of 64 columns, added to those of the columns before.
template <class W, Storage kStorage>
__device__ void multiply_stage(const std::byte* stage, int step, WideSums<W>& sums) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int g = lane / 4, t = lane % 4;
  const int strip = warp % W::kWarpRows * W::kWarpStrips, first = warp / W::kWarpRows * W::kWarpTiles * 8;
  Fragment<kStorage> a[W::kWarpStrips];
  Scales<kStorage> scales[W::kWarpStrips];
#pragma unroll
  for (int s = 0; s < W::kWarpStrips; ++s) {
    const std::byte* behind = stage + W::kScalesAt + (strip + s) * W::kScales;
    if constexpr (W::kScales == 2 * kLanes)
      scales[s].bytes = reinterpret_cast<const std::uint16_t*>(behind)[lane];
    if constexpr (W::kScales == 4 * kLanes)
      scales[s].bytes = reinterpret_cast<const std::uint32_t*>(behind)[lane];
    if constexpr (Scales<kStorage>::kPerBlock) scales[s].rows = *reinterpret_cast<const float2*>(behind);
    uint4 values[half_pieces(kStorage)];
#pragma unroll
    for (int i = 0; i < half_pieces(kStorage); ++i)
      values[i] = *reinterpret_cast<const uint4*>(stage + (strip + s) * W::kValues + i * 512 + lane * 16);
    std::uint32_t m[2];
    multipliers(scales[s], step % kHalves, m);
    a[s] = fragment<kStorage>(values, m);
  }
  const std::byte* inputs = stage + W::kInputsAt + (first + g) * W::kRowBytes;
  const int places[2] = {place_of(g, t, 0), place_of(g, t, 1)};
#pragma unroll
  for (int n = 0; n < W::kWarpTiles; ++n) {
    float whole[W::kWarpStrips][4];
#pragma unroll
    for (int term = W::kTerms - 1; term >= 0; --term) {
      Columns in;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        in.of[i] =
            *reinterpret_cast<const uint4*>(inputs + term * W::kTermBytes + n * 8 * W::kRowBytes + places[i]);
#pragma unroll
      for (int s = 0; s < W::kWarpStrips; ++s) {
        float part[4];
        multiply_half(a[s], in, term > 0, part);
        scale_sums(scales[s], part);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          whole[s][i] = term == W::kTerms - 1 ? part[i] : __fadd_rn(whole[s][i], part[i]);
      }
    }
#pragma unroll
    for (int s = 0; s < W::kWarpStrips; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.of[s][n][i] = __fadd_rn(sums.of[s][n][i], whole[s][i]);
  }
}

/// The sums through shared memory, so that neighbouring threads write neighbouring channels.
template <class W, Storage kStorage>
__device__ void write_tile(const Product& p, const WideItem& item, const WideSums<W>& sums, float* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int g = lane / 4, t = lane % 4;
  const int strip = warp % W::kWarpRows * W::kWarpStrips, first = warp / W::kWarpRows * W::kWarpTiles * 8;
#pragma unroll
  for (int s = 0; s < W::kWarpStrips; ++s)
#pragma unroll
    for (int n = 0; n < W::kWarpTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        shared[(first + 8 * n + 2 * t + i % 2) * W::kSumsStride + (strip + s) * kStripRows + g + i / 2 * 8] =
            sums.of[s][n][i];
  __syncthreads();
  constexpr int kPairs = kWideStrips * 8;
#pragma unroll 1
  for (int q = static_cast<int>(threadIdx.x); q < item.tile.count * kPairs; q += W::kThreads) {
    const int token = q / kPairs, local = q % kPairs / 8, row = q % 8;
    if (item.first_strip + local >= p.weights.strips) continue;
    const float* at = shared + token * W::kSumsStride + local * kStripRows + row;
    const int position = item.tile.first + token;
    write_sums<kStorage>(p, item.expert, item.first_strip + local, row, position,
                         p.down ? load_fresh(p.slots + position) : 0, {at[0], at[8]});
  }
}

template <class W, Storage kStorage>
__device__ void multiply_item(const Product& p, const WideItem& item, const std::uint16_t** rows,
                              std::byte* ring) {
  for (int token = static_cast<int>(threadIdx.x); token < W::kTokens; token += W::kThreads) {
    // What is beyond the tile is not used.
    const int position = item.tile.first + min(token, item.tile.count - 1);
    const int row = p.rows == nullptr ? position : load_fresh(p.rows + position);
    rows[token] = p.input.data + static_cast<std::size_t>(row) * p.input.stride;
  }
  __syncthreads();
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(ring));
  const int steps = p.weights.k_blocks * kHalves;
  const Share<W, kStorage> share(p, item.first_strip);
  const std::byte* blocks =
      item.expert + p.weights.blocks +
      static_cast<std::int64_t>(item.first_strip) * p.weights.k_blocks * block_bytes(kStorage);
  const auto fetch = [&](int step, int stage) {
    share.fetch(p, blocks, rows, step, base + stage * W::kStage);
  };
#pragma unroll 1
  for (int step = 0; step < W::kStages - 1; ++step) {
    if (step < steps) fetch(step, step);
    commit_copies();
  }
  WideSums<W> sums;
  int stage = 0, next_stage = W::kStages - 1;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<W::kStages - 2>();
    __syncthreads();  // everybody's copies are there, and nobody reads the stage that is filled next
    if (step + W::kStages - 1 < steps) fetch(step + W::kStages - 1, next_stage);
    commit_copies();
    multiply_stage<W, kStorage>(ring + stage * W::kStage, step, sums);
    stage = stage + 1 == W::kStages ? 0 : stage + 1;
    next_stage = next_stage + 1 == W::kStages ? 0 : next_stage + 1;
  }
  wait_copies<0>();
  __syncthreads();  // nobody reads the ring any more
  write_tile<W, kStorage>(p, item, sums, reinterpret_cast<float*>(ring));
  __syncthreads();
}

template <Storage kStorage, int kWidth, int kTerms>
__global__ void __launch_bounds__(Wide<kStorage, kWidth, kTerms>::kThreads,
                                  Wide<kStorage, kWidth, kTerms>::kMinBlocks)
    multiply_wide(const __grid_constant__ Product p) {
  using W = Wide<kStorage, kWidth, kTerms>;
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ const std::uint16_t* rows[W::kTokens];
  wait_for_earlier();
  start_later();
  const int groups = (p.weights.strips + kWideStrips - 1) / kWideStrips;
  const int items = load_fresh(p.tile_count) * groups;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
    const Tile* at = p.tiles + i / groups;
    WideItem item{.tile = {load_fresh(&at->expert), load_fresh(&at->first), load_fresh(&at->count)},
                  .first_strip = i % groups * kWideStrips,
                  .expert = nullptr};
    item.expert = p.experts + item.tile.expert * p.expert_bytes;
    multiply_item<W, kStorage>(p, item, rows, ring);
  }
}

}  // namespace sluice::cuda
