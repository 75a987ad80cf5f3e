// SPDX-License-Identifier: Apache-2.0
// What the warps of decode_strips.cuh share, and how weights come to one.
#pragma once

#include "experts/cuda/mma/bulk.cuh"
#include "experts/cuda/mma/decode_lists.cuh"
#include "experts/cuda/mma/fragment.cuh"

namespace sluice::cuda {

/// What a bulk copy brings, some 3 KB, and how many of them a warp has on their way or before it. An H200
/// needs 40 KB a processor for its bandwidth.
inline constexpr int kRingBytes = 6912;
template <Storage kStorage>
struct RingShape {
  static constexpr int kSlots = 2;
  static constexpr int kSlotBlocks = kRingBytes / kSlots / block_bytes(kStorage);
  static constexpr int kSlotBytes = kSlotBlocks * block_bytes(kStorage);
};

/// A piece of work: neighbouring strips of a tile. Blocks take them in the order of tiles, gate and up before
/// down, so all work at neighbouring tiles at a time: what a tile of the down product needs was written long
/// before, and an expert's second tile finds the weights of its first in L2.
struct Piece {
  int product, tile, first, count;  // product 2: no work is left
  int begin;                        // strips of the block's pieces before
  int part;                         // of the rows
};

/// What of its rows a piece multiplies.
struct PartBlocks {
  int first, count, most;  // of a part of this product

  __device__ PartBlocks(const Decode& d, int product, int part) {
    most = d.parts[product].blocks;
    first = part * most;
    count = min(most, d.products[product].weights.k_blocks - first);
  }
};
/// Strips of a piece: as many as give every block so many pieces, within limits. With fewer than warps some
/// would have none, and copying a piece's inputs costs as much as a strip or less.
inline constexpr int kPiecesOfBlock = 8, kLeastStrips = 8, kMostStrips = 16;
/// Known ahead: the one that is multiplied, two whose inputs come, and the one behind.
inline constexpr int kPiecesAhead = 4;

template <Storage kStorage>
struct StripsShared {
  using Shape = RingShape<kStorage>;
  alignas(128) std::byte rings[kStripWarps][Shape::kSlots][Shape::kSlotBytes];
  /// Of two pieces: one that is multiplied, and the next.
  union {
    alignas(128) std::byte inputs[2][kStripInputBytes];
    DecodeScratch scratch;
  };
  std::uint64_t full[kStripWarps][Shape::kSlots];  // copies have come
  std::uint64_t inputs_full[2], inputs_empty[2];   // a piece's have come; all warps are through with them
  std::uint64_t known[kPiecesAhead];               // a piece is there
  Piece pieces[kPiecesAhead];
  int taken;  // strips of the block's pieces that warps have taken
  alignas(64) DecodeLists lists;
  int launch;  // which set of counters is this launch's
};

/// Waits until a piece is known.
template <Storage kStorage>
__device__ const Piece& piece_of(StripsShared<kStorage>& shared, int number) {
  wait_for(shared_address(&shared.known[number % kPiecesAhead]), number / kPiecesAhead % 2);
  return shared.pieces[number % kPiecesAhead];
}

/// Where a strip's blocks are, and in which piece. No blocks: none is left, or its piece is not known yet,
/// nor waited for, as whoever waits there may be waited for.
struct StripBlocks {
  const std::byte* from;
  int blocks, piece;
};

/// The strip of this number among those of a block's pieces, which is not in pieces before `piece`. Called,
/// not inlined: it is needed in several places, once a strip.
template <Storage kStorage>
__device__ __noinline__ StripBlocks find_strip(const Decode& d, StripsShared<kStorage>& shared, int number,
                                               int piece) {
  for (;; ++piece) {
    if (!has_ended(shared_address(&shared.known[piece % kPiecesAhead]), piece / kPiecesAhead % 2))
      return {nullptr, 0, piece};
    const Piece at = shared.pieces[piece % kPiecesAhead];
    if (at.product == 2) return {nullptr, 0, piece};
    if (number >= at.begin + at.count) continue;
    const Product& p = d.products[at.product];
    const PartBlocks part(d, at.product, at.part);
    return {p.experts + shared.lists.tiles[at.product][at.tile].expert * p.expert_bytes + p.weights.blocks +
                (at.first + number - at.begin) * p.weights.strip_bytes() + part.first * block_bytes(kStorage),
            part.count, piece};
  }
}

/// The weights of the strips that a warp takes, in order.
template <Storage kStorage>
class StripRing {
 public:
  using Shared = StripsShared<kStorage>;
  using Shape = RingShape<kStorage>;

  __device__ StripRing(const Decode& d, Shared& shared)
      : d_(d),
        shared_(shared),
        slots_(shared_address(shared.rings[warp()])),
        full_(shared_address(shared.full[warp()])) {}

  /// Takes the strip whose slots come next, and gives its number among those of the block's pieces.
  __device__ int next_strip() {
    if (lane() == 0 && begun_) take();
    begun_ = true;
    return __shfl_sync(~0u, strip_, 0);
  }

  /// That strip is in this piece, which is known. Pieces before may have made room for others since lane 0
  /// looked for it in vain.
  __device__ void begin_in(int piece) {
    piece_ = max(piece_, piece);
    fill();
  }

  /// Lane 0 starts copies to all slots that are free, as far as strips are known: of the one that is
  /// multiplied, and of the next, which it takes for that.
  __device__ void fill() {
    if (lane() == 0)
      while (ahead_ < Shape::kSlots && fetch()) ++ahead_;
  }

  /// The oldest slot, when it is there.
  __device__ SharedBytes wait() const {
    wait_for(full_ + read_ * 8, parity_);
    return {slots_ + read_ * Shape::kSlotBytes};
  }
  /// All lanes have read it.
  __device__ void release() {
    __syncwarp();
    --ahead_;
    fill();
    parity_ ^= read_;
    read_ ^= 1;
  }

 private:
  static_assert(Shape::kSlots == 2);
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }

  __device__ void take() {
    strip_ = atomicAdd(&shared_.taken, 1);
    begun_ = found_ = false;
  }

  __device__ bool fetch() {
    if (left_ == 0) {
      if (found_) {
        if (!begun_) return false;
        take();
      }
      const StripBlocks blocks = find_strip(d_, shared_, strip_, piece_);
      piece_ = blocks.piece;
      if (blocks.blocks == 0) return false;
      found_ = true;
      from_ = blocks.from;
      left_ = blocks.blocks;
    }
    const int blocks = min(left_, Shape::kSlotBlocks);
    const std::uint32_t bytes = static_cast<std::uint32_t>(blocks * block_bytes(kStorage));
    copy_bulk(slots_ + fill_ * Shape::kSlotBytes, from_, bytes, full_ + fill_ * 8);
    from_ += bytes;
    left_ -= blocks;
    fill_ ^= 1;
    return true;
  }

  const Decode& d_;
  Shared& shared_;
  const std::uint32_t slots_, full_;
  // Lane 0's: the strip that it fetches, whether it is multiplied already and where it was found, and what is
  // left of it.
  int strip_ = 0, piece_ = 0, left_ = 0, ahead_ = 0;
  bool begun_ = true, found_ = true;
  const std::byte* from_ = nullptr;
  std::uint32_t fill_ = 0, read_ = 0, parity_ = 0;
};

}  // namespace sluice::cuda
