// SPDX-License-Identifier: Apache-2.0
// What the blocks of decode_slices.cuh share out, and how weights come to a warp.
#pragma once

#include "experts/cuda/mma/bulk.cuh"
#include "experts/cuda/mma/decode_lists.cuh"
#include "experts/cuda/mma/fragment.cuh"

namespace sluice::cuda {

/// Strips whose parts are in shared memory, and how many strips later a strip is finished.
inline constexpr int kPartBuffers = 4, kFinishLater = 2;

/// What a warp has of every strip: up to kSlice blocks.
template <Storage kStorage, int kSlice>
struct DecodeShape {
  static constexpr int kSliceBytes = kSlice * block_bytes(kStorage);
  /// Two blocks share a processor of 227 KB where two slots of both fit.
  static constexpr int kRingBytes = 88 * 1024 / kDecodeWarps;
  static constexpr int kSlots = kRingBytes / kSliceBytes < 2   ? 2
                                : kRingBytes / kSliceBytes > 6 ? 6
                                                               : kRingBytes / kSliceBytes;
};

template <Storage kStorage, int kSlice>
struct DecodeShared {
  using Shape = DecodeShape<kStorage, kSlice>;
  std::byte rings[kDecodeWarps][Shape::kSlots][Shape::kSliceBytes];
  union {
    float4 parts[kPartBuffers][kDecodeWarps][kLanes];
    DecodeScratch scratch;
  };
  std::uint64_t full[kDecodeWarps][Shape::kSlots];  // copies have come
  std::uint64_t parts_full[kPartBuffers],
      parts_empty[kPartBuffers];  // all warps have written; the finisher has read
  alignas(64) DecodeLists lists;
  std::uint32_t* ready;  // this launch's set
};

/// A block's share of the items of a product, tile by tile and strip by strip.
struct Items {
  int item, end, tile, strip;

  __device__ Items(const Product& p, int tiles) {
    const std::int64_t all = std::int64_t{tiles} * p.weights.strips;
    item = static_cast<int>(all * blockIdx.x / gridDim.x);
    end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
    tile = item / p.weights.strips;
    strip = item - tile * p.weights.strips;
  }
  __device__ void next(const Product& p) {
    ++item;
    if (++strip == p.weights.strips) {
      strip = 0;
      ++tile;
    }
  }
};

/// The blocks of a strip that a warp has.
struct Slice {
  int first, count;

  __device__ explicit Slice(const Product& p) {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    first = p.weights.k_blocks * warp / kDecodeWarps;
    count = p.weights.k_blocks * (warp + 1) / kDecodeWarps - first;
  }
};

/// A warp's slices of both products, in order.
template <Storage kStorage, int kSlice>
class SliceRing {
 public:
  using Shared = DecodeShared<kStorage, kSlice>;
  static constexpr int kSlots = DecodeShape<kStorage, kSlice>::kSlots;

  __device__ SliceRing(const Decode& d, Shared& shared)
      : d_(d), shared_(shared), items_(d.products[0], shared.lists.counts[0]) {}

  /// Lane 0 alone: starts the copy of the next slice, if there is one, into a slot that nobody reads.
  /// Products of which the warp has no blocks have none.
  __device__ void fetch() {
    while (items_.item >= items_.end || slice_of(product_).count == 0) {
      if (product_ == 1) return;
      product_ = 1;
      items_ = Items(d_.products[1], shared_.lists.counts[1]);
      from_ = nullptr;
    }
    const Product& p = d_.products[product_];
    const Slice slice = slice_of(product_);
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    if (from_ == nullptr)
      from_ = p.experts + shared_.lists.tiles[product_][items_.tile].expert * p.expert_bytes +
              p.weights.blocks +
              (std::int64_t{items_.strip} * p.weights.k_blocks + slice.first) * block_bytes(kStorage);
    copy_bulk(shared_address(shared_.rings[warp][fill_]), from_,
              static_cast<std::uint32_t>(slice.count * block_bytes(kStorage)),
              shared_address(&shared_.full[warp][fill_]));
    fill_ = fill_ + 1 == kSlots ? 0 : fill_ + 1;
    from_ += p.weights.k_blocks * block_bytes(kStorage);
    items_.next(p);
    if (items_.strip == 0) from_ = nullptr;
  }

  /// The oldest slice, when it is there.
  __device__ const std::byte* wait() const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    wait_for(shared_address(&shared_.full[warp][read_]), parity_);
    return shared_.rings[warp][read_];
  }
  /// All lanes have read it.
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % kLanes == 0) fetch();
    if (++read_ == kSlots) {
      read_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ Slice slice_of(int product) const { return Slice(d_.products[product]); }

  const Decode& d_;
  Shared& shared_;
  // Lane 0's: what it fetches next, and where that is, unless it must be looked up.
  Items items_;
  const std::byte* from_ = nullptr;
  int product_ = 0, fill_ = 0, read_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace sluice::cuda
