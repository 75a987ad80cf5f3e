// SPDX-License-Identifier: Apache-2.0
// The product for 17 to 128 tokens of an expert: a block has eight strips and the tokens of a tile, and goes
// over the columns 64 at a time, weights and inputs in a ring of shared memory by cp.async. A warp has two
// strips or four and up to 64 tokens, so what it unpacks is multiplied up to eight times. Two blocks and more
// share a processor: while one unpacks, or writes its results, another multiplies.
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
  static constexpr int kWarpStrips = kTokens > 64 ? 4 : 2;
  static constexpr int kWarpTiles = (kTokens < 64 ? kTokens : 64) / 8;  // of eight tokens
  static constexpr int kWarpRows = kWideStrips / kWarpStrips, kWarpColumns = kTokens / (8 * kWarpTiles);
  static constexpr int kThreads = kWarpRows * kWarpColumns * kLanes;
  static constexpr int kMinBlocks = kTokens * kTerms > 96 || value_bits(kStorage) == 16 ? 2 : 3;
  // Strips that are unpacked at a time, and tiles that are multiplied with them in turn: four sums or six.
  static constexpr int kStripsAtOnce = 2, kTilesAtOnce = kTerms == 1 ? 2 : 1;

  // A stage: the values of half a block of each strip, their scales, the tokens' 64 columns.
  static constexpr int kValues = value_bytes(kStorage) / kHalves,
                       kScales = scale_bytes(kStorage) / scale_parts(kStorage);
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
  static constexpr int kRows = W::kTokens * 8 / W::kThreads;
  static constexpr int kRowStep = W::kThreads / 8;
  static_assert(kRows * kRowStep == W::kTokens && kValueCopies * W::kThreads == kWideStrips * kPieces);

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
    column = first_column(kStorage, static_cast<int>(thread / 2 % 4), static_cast<int>(thread % 2));
  }

  __device__ void fetch(const Product& p, const std::byte* blocks, const std::uint16_t* const* rows, int step,
                        std::uint32_t stage) const {
    const std::uint32_t thread = threadIdx.x, block = static_cast<std::uint32_t>(step / kHalves);
    const std::uint32_t half = static_cast<std::uint32_t>(step % kHalves);
    const std::uint32_t at = block * block_bytes(kStorage);
    const int from =
        step / kHalves * kBlockColumns + first_column(kStorage, 0, 2 * (step % kHalves)) + column;
    const bool there = from < p.input.columns;
    const int place = is_integer(kStorage) ? from : place_of_column(from);
    const std::uint16_t* row[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) row[n] = rows[thread / 8 + n * kRowStep] + (there ? place : 0);
#pragma unroll
    for (int i = 0; i < kValueCopies; ++i)
      copy_async(stage + 16 * (thread + i * W::kThreads), blocks + (values[i] + at + half * W::kValues));
    if constexpr (kScalePieces > 0)
      if (thread < kWideStrips * kScalePieces)
        copy_async(stage + W::kScalesAt + thread * 16,
                   blocks + (scales + at + (scale_parts(kStorage) == 1 ? 0 : half * W::kScales)));
    // A thread always fetches the same piece, of tokens an even distance apart.
    const std::uint32_t token = thread / 8;
    const std::uint32_t to =
        stage + W::kInputsAt + token * W::kRowBytes +
        place_of(static_cast<int>(token), static_cast<int>(thread / 2 % 4), static_cast<int>(thread % 2));
#pragma unroll
    for (int n = 0; n < kRows; ++n)
#pragma unroll
      for (int term = 0; term < W::kTerms; ++term)
        copy_async(to + n * kRowStep * W::kRowBytes + term * W::kTermBytes, row[n] + term * p.input.plane,
                   there);
  }
};

/// A tile's rows of the input, and slots of the output.
template <class W>
struct WideRows {
  const std::uint16_t* inputs[W::kTokens];
  int slots[W::kTokens];
};

template <class W>
struct WideSums {
  float of[W::kWarpStrips][W::kWarpTiles][4] = {};
};

/// A lane's part of half a block in a stage.
template <Storage kStorage>
struct HalfBlock {
  Scales<kStorage> scales;
  Fragment<kStorage> a;
};

template <class W, Storage kStorage>
__device__ HalfBlock<kStorage> unpack(const std::byte* stage, int strip, int half) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  HalfBlock<kStorage> block;
  block.scales = load_scales<kStorage>(stage + W::kScalesAt + strip * W::kScales, lane);
  uint4 values[half_pieces(kStorage)];
#pragma unroll
  for (int i = 0; i < half_pieces(kStorage); ++i)
    values[i] = *reinterpret_cast<const uint4*>(stage + strip * W::kValues + i * 512 + lane * 16);
  block.a = fragment<kStorage>(values, block.scales, half);
  return block;
}

/// One term of some tiles of eight tokens after another.
template <class W>
using WideInputs = Columns[W::kTilesAtOnce][W::kTerms];

/// The sum of a chain's terms, element `i` of a lane's.
template <int kTerms>
__device__ float whole_of(const float (&part)[kTerms][4], int i) {
  float whole = part[kTerms - 1][i];
#pragma unroll
  for (int term = kTerms - 2; term >= 0; --term) whole = __fadd_rn(whole, part[term][i]);
  return whole;
}

/// Adds the sums of a chain of some strips times some tiles.
template <class W, Storage kStorage>
__device__ void multiply_chain(const HalfBlock<kStorage> (&blocks)[W::kStripsAtOnce], int chain,
                               const WideInputs<W>& in, float (*const (&sums)[W::kStripsAtOnce])[4]) {
  float part[W::kStripsAtOnce][W::kTilesAtOnce][W::kTerms][4] = {};
  [[maybe_unused]] float inputs[W::kTilesAtOnce][W::kTerms][4] = {};
#pragma unroll
  for (int step = 0; step < Fragment<kStorage>::kChainProducts; ++step)
#pragma unroll
    for (int n = 0; n < W::kTilesAtOnce; ++n)
#pragma unroll
      for (int term = 0; term < W::kTerms; ++term) {
        const int product = chain * Fragment<kStorage>::kChainProducts + step;
#pragma unroll
        for (int s = 0; s < W::kStripsAtOnce; ++s)
          multiply_step(blocks[s].a, product, in[n][term], term > 0, part[s][n][term]);
        if constexpr (has_minimums(kStorage)) add_inputs(product, in[n][term], inputs[n][term]);
      }
#pragma unroll
  for (int s = 0; s < W::kStripsAtOnce; ++s)
#pragma unroll
    for (int n = 0; n < W::kTilesAtOnce; ++n) {
#pragma unroll
      for (int term = 0; term < W::kTerms; ++term) scale_sums(blocks[s].scales, part[s][n][term]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float whole = whole_of(part[s][n], i);
        if constexpr (has_minimums(kStorage))
          sums[s][n][i] =
              add_chain(blocks[s].scales, chain, i, whole, sums[s][n][i], whole_of(inputs[n], i));
        else
          sums[s][n][i] = add_chain(blocks[s].scales, chain, i, whole, sums[s][n][i]);
      }
    }
}

/// Some strips times some tiles of eight tokens, whose inputs begin at `inputs`.
template <class W, Storage kStorage>
__device__ void multiply_some(const HalfBlock<kStorage> (&blocks)[W::kStripsAtOnce], const std::byte* inputs,
                              float (*const (&sums)[W::kStripsAtOnce])[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  WideInputs<W> in;
#pragma unroll
  for (int n = 0; n < W::kTilesAtOnce; ++n)
#pragma unroll
    for (int term = 0; term < W::kTerms; ++term)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        in[n][term].of[i] =
            *reinterpret_cast<const uint4*>(inputs + term * W::kTermBytes + n * 8 * W::kRowBytes +
                                            lane / 4 * W::kRowBytes + place_of(lane / 4, lane % 4, i));
#pragma unroll
  for (int chain = 0; chain < chains(kStorage); ++chain) multiply_chain<W, kStorage>(blocks, chain, in, sums);
}

/// One stage: the sums of 64 columns, added to those of the columns before. Of the warp's tokens `tokens` are
/// there.
template <class W, Storage kStorage>
__device__ void multiply_stage(const std::byte* stage, int step, int tokens, WideSums<W>& sums) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int strip = warp % W::kWarpRows * W::kWarpStrips, first = warp / W::kWarpRows * W::kWarpTiles * 8;
  const std::byte* inputs = stage + W::kInputsAt + first * W::kRowBytes;
#pragma unroll
  for (int some = 0; some < W::kWarpStrips; some += W::kStripsAtOnce) {
    HalfBlock<kStorage> blocks[W::kStripsAtOnce];
#pragma unroll
    for (int s = 0; s < W::kStripsAtOnce; ++s)
      blocks[s] = unpack<W, kStorage>(stage, strip + some + s, step % kHalves);
#pragma unroll
    for (int n = 0; n < W::kWarpTiles; n += W::kTilesAtOnce)
      if (8 * n < tokens)
        multiply_some<W, kStorage>(blocks, inputs + n * 8 * W::kRowBytes,
                                   {&sums.of[some][n], &sums.of[some + 1][n]});
  }
}

/// The sums through shared memory, so that neighbouring threads write neighbouring channels.
template <class W, Storage kStorage>
__device__ void write_tile(const Product& p, const WideItem& item, const WideSums<W>& sums,
                           const WideRows<W>& rows, float* shared) {
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
  // A thread writes the same two rows of every so many-th token.
  constexpr int kPairs = kWideStrips * 8;
  static_assert(W::kThreads % kPairs == 0);
  const int pair = static_cast<int>(threadIdx.x) % kPairs, local = pair / 8, row = pair % 8;
  const int own = item.first_strip + local;
  const RowEnds ends = row_ends(p.weights, item.expert, min(own, p.weights.strips - 1), row);
  __syncthreads();
  if (own < p.weights.strips) {
    const float* at = shared + local * kStripRows + row;
#pragma unroll 1
    for (int token = static_cast<int>(threadIdx.x) / kPairs; token < item.tile.count;
         token += W::kThreads / kPairs)
      write_sums<kStorage>(p, {own, row, item.tile.first + token, rows.slots[token]}, ends,
                           {at[token * W::kSumsStride], at[token * W::kSumsStride + 8]});
  }
}

template <class W, Storage kStorage>
__device__ void multiply_item(const Product& p, const WideItem& item, WideRows<W>& rows, std::byte* ring) {
  for (int token = static_cast<int>(threadIdx.x); token < W::kTokens; token += W::kThreads) {
    // What is beyond the tile is not used.
    const int position = item.tile.first + min(token, item.tile.count - 1);
    const int row = p.rows == nullptr ? position : load_fresh(p.rows + position);
    rows.inputs[token] = p.input.data + static_cast<std::size_t>(row) * p.input.stride;
    if (p.down) rows.slots[token] = load_fresh(p.slots + position);
  }
  __syncthreads();
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(ring));
  const int steps = p.weights.k_blocks * kHalves;
  const Share<W, kStorage> share(p, item.first_strip);
  const std::byte* blocks =
      item.expert + p.weights.blocks +
      static_cast<std::int64_t>(item.first_strip) * p.weights.k_blocks * block_bytes(kStorage);
  const auto fetch = [&](int step, int stage) {
    share.fetch(p, blocks, rows.inputs, step, base + stage * W::kStage);
  };
#pragma unroll 1
  for (int step = 0; step < W::kStages - 1; ++step) {
    if (step < steps) fetch(step, step);
    commit_copies();
  }
  WideSums<W> sums;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int tokens = item.tile.count - warp / W::kWarpRows * W::kWarpTiles * 8;
  int stage = 0, next_stage = W::kStages - 1;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_copies<W::kStages - 2>();
    __syncthreads();  // everybody's copies are there, and nobody reads the stage that is filled next
    if (step + W::kStages - 1 < steps) fetch(step + W::kStages - 1, next_stage);
    commit_copies();
    multiply_stage<W, kStorage>(ring + stage * W::kStage, step, tokens, sums);
    stage = stage + 1 == W::kStages ? 0 : stage + 1;
    next_stage = next_stage + 1 == W::kStages ? 0 : next_stage + 1;
  }
  wait_copies<0>();
  __syncthreads();  // nobody reads the ring any more
  write_tile<W, kStorage>(p, item, sums, rows, reinterpret_cast<float*>(ring));
  __syncthreads();
}

template <Storage kStorage, int kWidth, int kTerms>
__global__ void __launch_bounds__(Wide<kStorage, kWidth, kTerms>::kThreads,
                                  Wide<kStorage, kWidth, kTerms>::kMinBlocks)
    multiply_wide(const __grid_constant__ Product p) {
  using W = Wide<kStorage, kWidth, kTerms>;
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ WideRows<W> rows;
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
