// SPDX-License-Identifier: Apache-2.0
// The product for up to 16 tokens of an expert, which waits for memory. A warp computes whole strips alone.
// Their blocks pass through a ring in shared memory that only this warp uses, filled several blocks ahead and
// on into the warp's next strip, so copies are on their way from the first block to the last, and no warp
// waits for another. Inputs come from L1, where the strips of a thread block, which are neighbours, find them
// again.
//
// grid: as many blocks as the card holds    block: 32 * kNarrowWarps
// shared: a ring for every warp
#pragma once

#include "experts/cuda/mma/epilogue.cuh"

namespace sluice::cuda {

inline constexpr int kNarrowWarps = 8;

/// Blocks of a ring: 6 to 12 KB a warp. Two thread blocks have 85 KB on their way, where an H200 needs 40,
/// and what is left is L1 for inputs.
constexpr int ring_blocks(Storage storage) {
  return value_bits(storage) == 4 ? 6 : value_bits(storage) == 8 ? 4 : 3;
}

constexpr std::size_t narrow_shared_bytes(Storage storage) {
  return static_cast<std::size_t>(kNarrowWarps * ring_blocks(storage) * block_bytes(storage));
}

/// A strip of a tile.
struct TileStrip {
  Tile tile;
  int strip;
  const std::byte* expert;

  __device__ TileStrip(const Product& p, int item) : strip(item % p.weights.strips) {
    const Tile* at = p.tiles + item / p.weights.strips;
    tile = {load_fresh(&at->expert), load_fresh(&at->first), load_fresh(&at->count)};
    expert = p.experts + tile.expert * p.expert_bytes;
  }
};

/// The strips of a warp: eight neighbours, or fewer where there are not eight for every thread block, are
/// those of a block's warps, and then the next in turn, so that all blocks see experts of many tokens and of
/// few.
struct Turns {
  int item, end;

  __device__ Turns(const Product& p, int tiles) : end(tiles * p.weights.strips) {
    const int blocks = static_cast<int>(gridDim.x), warp = static_cast<int>(threadIdx.x) / kLanes;
    const int together = min((end + blocks - 1) / blocks, kNarrowWarps);
    item = warp < together ? static_cast<int>(blockIdx.x) * together + warp : end;
  }
  /// With fewer than eight there is one turn.
  __device__ void next() { item += static_cast<int>(gridDim.x) * kNarrowWarps; }
};

/// A lane's part of a block.
template <Storage kStorage>
struct Held {
  uint4 values[kHalves * half_pieces(kStorage)];
  Scales<kStorage> scales[scale_parts(kStorage)];
};

/// A warp's blocks, in order.
template <Storage kStorage>
class Ring {
 public:
  static constexpr int kBlocks = ring_blocks(kStorage);

  __device__ Ring(std::byte* memory, const Turns& turns)
      : memory_(memory + threadIdx.x / kLanes * kBytes),
        filled_(static_cast<std::uint32_t>(__cvta_generic_to_shared(memory_)) + lane() * 16),
        turns_(turns) {}

  /// Starts the copies of the next block, if there is one.
  __device__ void fetch(const Product& p) {
    if (left_ == 0 && turns_.item < turns_.end) start_strip(p);
    if (left_ > 0) {
      --left_;
#pragma unroll
      for (int i = 0; i < value_bytes(kStorage) / 512; ++i)
        copy_async(filled_ + fill_ + i * 512, from_ + i * 512);
      if (scale_bytes(kStorage) > 0 && lane() < scale_bytes(kStorage) / 16)
        copy_async(filled_ + fill_ + value_bytes(kStorage), from_ + value_bytes(kStorage));
      from_ += kBlock;
    }
    commit_copies();
    fill_ = after(fill_);
  }

  /// The next block; fetches the one that takes the place of the block before it.
  __device__ Held<kStorage> take(const Product& p) {
    wait_copies<kBlocks - 2>();
    __syncwarp();  // all lanes' copies are there, and all have read the block before
    Held<kStorage> held;
    const std::byte* block = memory_ + read_;
#pragma unroll
    for (int i = 0; i < kHalves * half_pieces(kStorage); ++i)
      held.values[i] = *reinterpret_cast<const uint4*>(block + i * 512 + lane() * 16);
    const std::byte* behind = block + value_bytes(kStorage);
    constexpr int kParts = scale_parts(kStorage);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      held.scales[part] =
          load_scales<kStorage>(behind + part * (scale_bytes(kStorage) / kParts), static_cast<int>(lane()));
    read_ = after(read_);
    fetch(p);
    return held;
  }

 private:
  static constexpr std::uint32_t kBlock = block_bytes(kStorage), kBytes = kBlock * kBlocks;

  __device__ static std::uint32_t lane() { return threadIdx.x % kLanes; }
  __device__ static std::uint32_t after(std::uint32_t at) { return at == kBytes - kBlock ? 0 : at + kBlock; }
  __device__ void start_strip(const Product& p) {
    const Tile* tile = p.tiles + turns_.item / p.weights.strips;
    from_ = p.experts + load_fresh(&tile->expert) * p.expert_bytes + p.weights.blocks +
            static_cast<std::int64_t>(turns_.item % p.weights.strips * p.weights.k_blocks) * kBlock +
            lane() * 16;
    left_ = p.weights.k_blocks;
    turns_.next();
  }

  const std::byte* memory_;
  const std::byte* from_ = nullptr;  // of the block that is fetched next, a lane's first piece
  std::uint32_t filled_;             // where pieces of the lane go to, and of which block
  std::uint32_t fill_ = 0, read_ = 0;
  int left_ = 0;  // blocks of the strip to fetch
  Turns turns_;
};

/// What eight tokens, or four, give to a step: products with a term each; or one with the first two terms of
/// a token in neighbouring columns and one with the last, which up to four tokens take two of instead of
/// three.
enum class Spread { one_term, one_term_in_lanes, three_terms, pairs };

constexpr bool has_one_term(Spread spread) {
  return spread == Spread::one_term || spread == Spread::one_term_in_lanes;
}
constexpr int products(Spread spread) { return has_one_term(spread) ? 1 : spread == Spread::pairs ? 2 : 3; }

/// The B operands of half a block, for kTiles times eight tokens.
template <Spread kSpread, int kTiles>
struct HalfInputs {
  Columns of[kTiles][products(kSpread)];
};

/// How tokens lie in the columns of a product: one each, or up to four of them in two each, so that four
/// lanes end up with one token instead of two lanes with two.
template <Spread kSpread>
__device__ int column_shift(int count) {
  return kSpread == Spread::pairs || (has_one_term(kSpread) && count <= 4) ? 1 : 0;
}

/// Where a lane reads its part of the B operands. Columns beyond the tokens repeat the last one. Several
/// terms lie in the order in which integers have their columns anyway.
template <Storage kStorage, Spread kSpread, int kTiles>
struct Inputs {
  const std::byte* at[kTiles][products(kSpread)];
  int left;                                                      // columns from the lane's first on
  static constexpr int kColumns = first_column(kStorage, 0, 1);  // between pieces of a lane
  static constexpr bool kTogether = kSpread == Spread::one_term && !is_integer(kStorage);
  static constexpr int kPiece = kTogether ? 16 : 2 * kPlaceOfPiece;  // bytes between two

  __device__ Inputs(const Product& p, const Tile& tile) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
    left = p.input.columns - first_column(kStorage, t, 0);
    const int column = g >> column_shift<kSpread>(tile.count);
#pragma unroll
    for (int tokens = 0; tokens < kTiles; ++tokens) {
      const int position = tile.first + min(8 * tokens + column, tile.count - 1);
      const int row = p.rows == nullptr ? position : load_fresh(p.rows + position);
      const std::uint16_t* from =
          p.input.data + static_cast<std::size_t>(row) * p.input.stride + t * (kTogether ? 32 : kPlaceOfLane);
#pragma unroll
      for (int k = 0; k < products(kSpread); ++k) {
        const int term = kSpread == Spread::pairs ? (k == 0 ? g % 2 : 2) : k;
        at[tokens][k] =
            reinterpret_cast<const std::byte*>(from + static_cast<std::size_t>(term) * p.input.plane);
      }
    }
  }

  /// Of a half of the block. All of its columns are there, or some are zeros.
  __device__ HalfInputs<kSpread, kTiles> load(int half, bool all) const {
    HalfInputs<kSpread, kTiles> in;
#pragma unroll
    for (int tokens = 0; tokens < kTiles; ++tokens) {
#pragma unroll
      for (int k = 0; k < products(kSpread); ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::byte* from = at[tokens][k] + (2 * half + i) * kPiece;
          in.of[tokens][k].of[i] = all ? *reinterpret_cast<const uint4*>(from)
                                       : load_or_zeros(from, left > kColumns * (2 * half + i));
        }
      }
    }
    return in;
  }

  __device__ void next_block() {
#pragma unroll
    for (int tokens = 0; tokens < kTiles; ++tokens) {
#pragma unroll
      for (int k = 0; k < products(kSpread); ++k) at[tokens][k] += 2 * kBlockColumns;
    }
    left -= kBlockColumns;
  }
};

/// Of rows g and g + 8: each for two tokens, or for one in elements 0 and 2.
template <int kTiles>
struct NarrowSums {
  float of[kTiles][4] = {};
};

/// The sum of a chain's terms, element `i` of a lane's.
template <Spread kSpread>
__device__ float whole_of(const float (&part)[products(kSpread)][4], int i) {
  float whole = part[0][i];
  if constexpr (kSpread == Spread::three_terms) whole = __fadd_rn(__fadd_rn(part[2][i], part[1][i]), whole);
  if constexpr (kSpread == Spread::pairs)
    if (i % 2 == 0) whole = __fadd_rn(__fadd_rn(part[1][i], part[0][i + 1]), whole);
  return whole;
}

/// Adds the sums of a chain of half a block to those before.
template <Storage kStorage, Spread kSpread, int kTiles>
__device__ void multiply_chain(const Scales<kStorage>& scales, const Fragment<kStorage>& a, int chain,
                               const HalfInputs<kSpread, kTiles>& in, NarrowSums<kTiles>& sums) {
  constexpr int kProducts = products(kSpread);
  float part[kTiles][kProducts][4] = {};
  [[maybe_unused]] float inputs[kTiles][kProducts][4] = {};
#pragma unroll
  for (int step = 0; step < Fragment<kStorage>::kChainProducts; ++step)
#pragma unroll
    for (int tokens = 0; tokens < kTiles; ++tokens)
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        const int product = chain * Fragment<kStorage>::kChainProducts + step;
        multiply_step(a, product, in.of[tokens][k], k > 0, part[tokens][k]);
        if constexpr (has_minimums(kStorage)) add_inputs(product, in.of[tokens][k], inputs[tokens][k]);
      }
#pragma unroll
  for (int tokens = 0; tokens < kTiles; ++tokens) {
#pragma unroll
    for (int k = 0; k < kProducts; ++k) scale_sums(scales, part[tokens][k]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float whole = whole_of<kSpread>(part[tokens], i);
      if constexpr (has_minimums(kStorage))
        sums.of[tokens][i] = add_chain(scales, chain, i, whole, sums.of[tokens][i],
                                       whole_of<kSpread>(inputs[tokens], i));
      else
        sums.of[tokens][i] = add_chain(scales, chain, i, whole, sums.of[tokens][i]);
    }
  }
}

template <Storage kStorage, Spread kSpread, int kTiles>
__device__ void multiply_half_block(const Held<kStorage>& held, int half,
                                    const HalfInputs<kSpread, kTiles>& in, NarrowSums<kTiles>& sums) {
  const Scales<kStorage>& scales = held.scales[scale_parts(kStorage) == 1 ? 0 : half];
  const auto a = fragment<kStorage>(held.values + half * half_pieces(kStorage), scales, half);
#pragma unroll
  for (int chain = 0; chain < chains(kStorage); ++chain) multiply_chain(scales, a, chain, in, sums);
}

template <Storage kStorage, Spread kSpread, int kTiles>
__device__ void multiply_strip(const Product& p, const TileStrip& at, Ring<kStorage>& ring) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
  Inputs<kStorage, kSpread, kTiles> inputs(p, at.tile);
  // Asked for here, so that it is there at the end.
  const RowEnds ends = row_ends(p.weights, at.expert, at.strip, g);
  NarrowSums<kTiles> sums;
  const int whole = p.input.columns / kBlockColumns;
  // Inputs of few tokens are asked for before the weights are waited for.
  constexpr bool kFew = kTiles * products(kSpread) <= 3;
  using In = HalfInputs<kSpread, kTiles>;
#pragma unroll 1
  for (int block = 0; block < p.weights.k_blocks; ++block) {
    In in[kHalves];
    const bool all = block < whole;
    if (all) {
      in[0] = inputs.load(0, true);
      if (kFew) in[1] = inputs.load(1, true);
    } else {
      in[0] = inputs.load(0, false);
      if (kFew) in[1] = inputs.load(1, false);
    }
    const Held<kStorage> held = ring.take(p);
    multiply_half_block<kStorage, kSpread, kTiles>(held, 0, in[0], sums);
    if (!kFew) in[1] = all ? inputs.load(1, true) : inputs.load(1, false);
    multiply_half_block<kStorage, kSpread, kTiles>(held, 1, in[1], sums);
    inputs.next_block();
  }
  const int shift = column_shift<kSpread>(at.tile.count);
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int token = i / 2 * 8 + (shift == 1 ? t : 2 * t + i % 2);
    if (token >= at.tile.count || (shift == 1 && i > 0)) continue;
    const int position = at.tile.first + token;
    write_sums<kStorage>(p, {at.strip, g, position, p.down ? load_fresh(p.slots + position) : 0}, ends,
                         {sums.of[i / 2][i % 2], sums.of[i / 2][2 + i % 2]});
  }
}

/// Infinite weights must not meet later terms, so those of 16 bits do not have them in one product.
template <Storage kStorage>
inline constexpr int kPairedTokens = value_bits(kStorage) < 16 ? 4 : 0;

/// kInOrder: rows of one term lie as callers have them, not at place_of_column.
template <Storage kStorage, int kTerms, bool kInOrder>
__global__ void __launch_bounds__(kNarrowWarps* kLanes, value_bits(kStorage) == 16 && kTerms > 1 ? 1 : 2)
    multiply_narrow(const __grid_constant__ Product p) {
  extern __shared__ __align__(128) std::byte rings[];
  // What a down product needs of the lists is older than the kernel before it, and weights are older still.
  if (!p.down) wait_for_earlier();
  Turns turns(p, load_fresh(p.tile_count));
  Ring<kStorage> ring(rings, turns);
#pragma unroll 1
  for (int i = 0; i < Ring<kStorage>::kBlocks - 1; ++i) ring.fetch(p);
  if (p.down) wait_for_earlier();
  start_later();
#pragma unroll 1
  for (; turns.item < turns.end; turns.next()) {
    const TileStrip at(p, turns.item);
    constexpr Spread kApart = kTerms > 1 ? Spread::three_terms
                              : kInOrder ? Spread::one_term
                                         : Spread::one_term_in_lanes;
    if (kTerms > 1 && at.tile.count <= kPairedTokens<kStorage>)
      multiply_strip<kStorage, kTerms == 1 ? kApart : Spread::pairs, 1>(p, at, ring);
    else if (at.tile.count <= 8)
      multiply_strip<kStorage, kApart, 1>(p, at, ring);
    else
      multiply_strip<kStorage, kApart, 2>(p, at, ring);
  }
}

}  // namespace sluice::cuda
