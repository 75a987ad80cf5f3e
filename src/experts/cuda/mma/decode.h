// SPDX-License-Identifier: Apache-2.0
// A whole layer for few tokens in one launch, on SM90: the border between the host and the kernel.
#pragma once

#include <algorithm>

#include "experts/cuda/mma/multiply.h"
#include "experts/cuda/mma/small.h"

namespace sluice::cuda {

/// By slices of strips (decode_slices.cuh), and by whole strips (decode_strips.cuh); small.h says which takes
/// what.
inline constexpr int kDecodeKernels = 2;

inline constexpr int kDecodeWarps = 8, kDecodeThreads = 32 * kDecodeWarps;

/// Tokens of a tile: as many as the eight columns of a product hold, with their terms. A tile of two lies in
/// one of eight.
constexpr int slice_tokens(int terms) { return terms == 1 ? 8 : 2; }

/// Warps of a block that multiply whole strips; one more shares out their work and copies their inputs. A
/// processor holds one block.
inline constexpr int kStripWarps = 15, kStripThreads = 32 * (kStripWarps + 1);

/// Tokens of a tile there: as many as fit the shared memory for its inputs, and as the columns of a product,
/// or of two of them, hold with their terms.
constexpr int strip_tokens(int terms, int k_blocks) {
  const int rows = kStripInputBytes / input_row_bytes(k_blocks);
  return terms == 1 ? std::min(rows, 8) : std::min(rows / kMostTerms, 4);
}

/// Of a layer and a kernel: what its launches count, zeros at first. A launch fills the card, so that its
/// blocks are all there before the first ends, and before a block of the layer's next launch, which may be in
/// another stream, begins. Blocks so tell by the number of their arrival, divided by the grid's size, which
/// launch they are of, and launches take turns with the two sets: a launch leaves its own as zeros, and the
/// next but one finds it so. The kernels have grids of different sizes, so each counts for itself.
struct DecodeCounters {
  unsigned long long arrivals;
  std::uint32_t taken[2];                    // pieces of work that are taken beside each block's first
  std::uint32_t ready[2][kMostDecodeSlots];  // strips of an up tile whose results are written
};

/// Parts of a product's rows (down_parts), and the blocks of one; the last may have fewer.
struct RowParts {
  int count, blocks;
};

/// What a layer does. The lists of the products are not used; the kernel makes its own.
struct Decode {
  const std::int32_t* ids;         // [slots] global
  const std::int32_t* expert_map;  // [experts] -> local or -1; null: the same
  int slots, top_k, experts, local_experts;
  bool rows_are_slots;  // rows of the input are those of slots, not of tokens
  Product products[2];  // up and down
  RowParts parts[2];    // of their rows; what the down product gives is [parts, slots, width]
  DecodeCounters* counters;
  const float* weights;  // [slots] of the sum; null: ones
  int tokens, width;
  float* out;  // [tokens, width]
};

/// A kernel and the threads and shared memory of its blocks. No function: there is none.
struct DecodeKernel {
  const void* function = nullptr;
  int threads = 0;
  std::size_t shared = 0;
};
/// For a storage of 4 bits and up to kMostSliceBlocks.
DecodeKernel slices_kernel(Storage storage, int k_blocks);
/// For a storage of up to 8 bits and up to kMostStripBlocks of the up product.
DecodeKernel strips_kernel(Storage storage);

DecodeKernel slices_fp4_e8m0(int k_blocks);
DecodeKernel slices_fp4_e4m3(int k_blocks);
DecodeKernel slices_int4_g32(int k_blocks);
DecodeKernel slices_int4_g128(int k_blocks);
DecodeKernel strips_fp4_e8m0();
DecodeKernel strips_fp4_e4m3();
DecodeKernel strips_fp8_scaled();
DecodeKernel strips_fp8_e8m0();
DecodeKernel strips_int4_g32();
DecodeKernel strips_int4_g128();
DecodeKernel strips_int8_g32();
DecodeKernel strips_int8_g128();

}  // namespace sluice::cuda
