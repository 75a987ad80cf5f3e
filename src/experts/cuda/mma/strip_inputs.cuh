// SPDX-License-Identifier: Apache-2.0
// What one warp of a block does for all others: it takes pieces of work, and copies their inputs to shared
// memory.
#pragma once

#include "experts/cuda/mma/strip_ring.cuh"

namespace sluice::cuda {

/// Arrives when the copies that this thread has started are there.
__device__ inline void arrive_after_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Rows that a token takes.
__device__ inline int rows_of_token(const Product& p) { return p.input.terms == 1 ? 1 : kMostTerms; }

/// Copies a tile's rows, tokens with their terms beside each other. Of every 128 columns the first eight of
/// the four lanes of a quad come first, then the next eight. One warp.
template <Storage kStorage>
__device__ void copy_inputs(const Decode& d, const Product& p, const PartBlocks& part,
                            const DecodeLists& lists, const SmallTile& tile, std::uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int piece = lane % 16 / 4, t = lane % 4;
  // Rows as callers have them have the 32 columns of a lane side by side; all others lie as they will in
  // shared memory.
  const bool together = p.input.in_order && !is_integer(kStorage);
  const int block_column = (part.first + lane / 16) * kBlockColumns;
  const int column =
      block_column + (together ? t * 32 + piece * 8 : t * kPlaceOfLane + piece * kPlaceOfPiece);
  const int left = p.input.columns - block_column - first_column(kStorage, t, piece);
  const int rows = rows_of_token(p), chunks = part.count * (kBlockColumns / 8);
  const int row_bytes = input_row_bytes(part.most);
  for (int token = 0; token < tile.count; ++token) {
    const int position = tile.first + token, slot = lists.slots[position];
    const int row = p.down ? position : d.rows_are_slots ? slot : slot / d.top_k;
    const std::uint16_t* from = p.input.data + static_cast<std::size_t>(row) * p.input.stride + column;
    for (int term = 0; term < rows; ++term, from += p.input.plane, to += row_bytes)
#pragma unroll 4
      for (int chunk = lane; chunk < chunks; chunk += kLanes)
        copy_async(to + chunk * 16, from + (chunk - lane) * 8, left > (chunk - lane) * 8);
  }
}

/// The pieces into which the strips of both products are cut.
struct Pieces {
  int strips[2], of_tile[2], up;  // of a piece; pieces of a tile's part; of all tiles of gate and up
  int all;

  __device__ Pieces(const Decode& d, const DecodeLists& lists) {
    const auto tiles_strips = [&](int product) {
      return lists.counts[product] * d.parts[product].count * d.products[product].weights.strips;
    };
    const int blocks = static_cast<int>(gridDim.x) * kPiecesOfBlock;
    const int most = min(max((tiles_strips(0) + tiles_strips(1)) / blocks, kLeastStrips), kMostStrips);
    for (int product = 0; product < 2; ++product) {
      const int of_tile = (d.products[product].weights.strips + most - 1) / most;
      this->of_tile[product] = of_tile;
      strips[product] = (d.products[product].weights.strips + of_tile - 1) / of_tile;
    }
    up = lists.counts[0] * d.parts[0].count * of_tile[0];
    all = up + lists.counts[1] * d.parts[1].count * of_tile[1];
  }

  __device__ Piece piece(const Decode& d, int number, int begin) const {
    if (number >= all) return {2, 0, 0, 0, begin, 0};
    const int product = number < up ? 0 : 1;
    if (product == 1) number -= up;
    const int parts = d.parts[product].count, tile_part = number / of_tile[product];
    const int first = (number - tile_part * of_tile[product]) * strips[product];
    return {product, tile_part / parts,
            first,   max(min(strips[product], d.products[product].weights.strips - first), 0),
            begin,   tile_part % parts};
  }
};

/// Takes pieces, the first of which is the block's own, and copies their inputs, each while the one before is
/// multiplied. One warp.
template <Storage kStorage>
__device__ void share_out(const Decode& d, StripsShared<kStorage>& shared) {
  const bool one = threadIdx.x % kLanes == 0;
  const Pieces pieces(d, shared.lists);
  std::uint32_t* const taken = d.counters->taken + shared.launch;
  int begin = 0;
  const auto announce = [&](int number) {
    if (one) {
      const int piece =
          number == 0 ? static_cast<int>(blockIdx.x) : static_cast<int>(gridDim.x + atomicAdd(taken, 1u));
      const Piece at = pieces.piece(d, piece, begin);
      shared.pieces[number % kPiecesAhead] = at;
      begin += at.count;
      arrive(shared_address(&shared.known[number % kPiecesAhead]));
    }
    __syncwarp();
  };
  announce(0);
  for (int number = 0;; ++number) {
    const Piece at = shared.pieces[number % kPiecesAhead];
    if (at.product == 2) return;
    announce(number + 1);
    const int buffer = number % 2;
    if (number >= 2) wait_for(shared_address(&shared.inputs_empty[buffer]), (number / 2 - 1) % 2);
    const Product& p = d.products[at.product];
    const SmallTile tile = shared.lists.tiles[at.product][at.tile];
    if (p.down) {
      const int last = last_source(shared.lists.tiles[0], tile);
      for (int source = tile.source; one && source <= last; ++source)
        wait_until(d.counters->ready[shared.launch] + source, d.products[0].weights.strips);
      __syncwarp();
    }
    copy_inputs<kStorage>(d, p, {d, at.product, at.part}, shared.lists, tile,
                          shared_address(shared.inputs[buffer]));
    arrive_after_copies(shared_address(&shared.inputs_full[buffer]));
  }
}

/// How tokens lie in the eight columns of a product: one each, or up to four of them in two each, so that
/// four lanes end up with one; two with their three terms; or four with two terms, and the third in a second
/// product.
enum class TokenSpread { tokens, triples, pairs };

/// Where a lane finds the columns that it multiplies. Columns beyond the tokens repeat one of them.
template <TokenSpread kSpread>
struct InputColumns {
  static constexpr int kProducts = kSpread == TokenSpread::pairs ? 2 : 1;
  SharedBytes of[kProducts];

  __device__ InputColumns(std::uint32_t inputs, int row_bytes, int count) {
    const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
    const auto at = [&](int row) {
      return SharedBytes{inputs + static_cast<std::uint32_t>(row * row_bytes + t * 16)};
    };
    if constexpr (kSpread == TokenSpread::tokens) {
      of[0] = at(min(count <= 4 ? g / 2 : g, count - 1));
    } else if constexpr (kSpread == TokenSpread::triples) {
      of[0] = at(min(g, kMostTerms * count - 1));
    } else {
      const int token = min(g / 2, count - 1);
      of[0] = at(kMostTerms * token + g % 2);
      of[1] = at(kMostTerms * token + 2);
    }
  }
};

}  // namespace sluice::cuda
