// SPDX-License-Identifier: Apache-2.0
// How a layer in one launch begins and ends, whichever way its blocks share out what is between.
#pragma once

#include <cuda_runtime.h>

#include "experts/cuda/mma/decode_lists.cuh"

namespace sluice::cuda {

/// Counts a block, and tells which of the two sets of counters is its launch's. Once a block.
__device__ inline int arrive_in_launch(const Decode& d) {
  return static_cast<int>(atomicAdd(&d.counters->arrivals, 1ull) / gridDim.x % 2);
}

/// A column of a slot's output, of the parts of its row.
__device__ inline float whole_of(const Decode& d, const float* row) {
  const std::size_t part = static_cast<std::size_t>(d.slots) * d.products[1].epilogue.out_stride;
  float whole = __ldcg(row);
  for (int k = 1; k < d.parts[1].count; ++k) whole = __fadd_rn(whole, __ldcg(row + k * part));
  return whole;
}

/// Tokens, as combine_rows sums them.
__device__ inline void combine_share(const Decode& d, const DecodeLists& lists) {
  const std::int64_t all = std::int64_t{d.tokens} * d.width;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const int token = static_cast<int>(i / d.width), column = static_cast<int>(i % d.width);
    float sum = 0;
    for (int slot = token * d.top_k; slot < (token + 1) * d.top_k; ++slot) {
      if (lists.local[slot] < 0) continue;
      const float weight = d.weights == nullptr ? 1.0f : d.weights[slot];
      const float* row =
          d.products[1].epilogue.out + static_cast<std::size_t>(slot) * d.products[1].epilogue.out_stride;
      sum = __fadd_rn(sum, __fmul_rn(weight, whole_of(d, row + column)));
    }
    d.out[i] = sum;
  }
}

}  // namespace sluice::cuda
