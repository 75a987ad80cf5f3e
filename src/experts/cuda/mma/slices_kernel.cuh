// SPDX-License-Identifier: Apache-2.0
// Which kernel of decode_slices.cuh a layer takes.
#pragma once

#include "experts/cuda/mma/decode_slices.cuh"

namespace sluice::cuda {

template <Storage kStorage, int kSlice>
DecodeKernel slice_kernel() {
  // A processor of SM90 has 228 KB for its blocks, which take 1 KB more each than they ask for.
  static_assert(2 * (sizeof(DecodeShared<kStorage, kSlice>) + 1024) <= 228 * 1024);
  return {reinterpret_cast<const void*>(decode_layer<kStorage, kSlice>), kDecodeThreads,
          sizeof(DecodeShared<kStorage, kSlice>)};
}

/// By the blocks of 128 columns that the wider of the two products has.
template <Storage kStorage>
DecodeKernel kernel_of(int k_blocks) {
  switch ((k_blocks + kDecodeWarps - 1) / kDecodeWarps) {
    case 1:
      return slice_kernel<kStorage, 1>();
    case 2:
      return slice_kernel<kStorage, 2>();
    case 3:
      return slice_kernel<kStorage, 3>();
    case 4:
      return slice_kernel<kStorage, 4>();
    default:
      return {};  // a slice's inputs do not fit the registers
  }
}

}  // namespace sluice::cuda
