// SPDX-License-Identifier: Apache-2.0
// Which kernel computes a product.
#pragma once

#include "experts/cuda/mma/narrow.cuh"
#include "experts/cuda/mma/start.h"
#include "experts/cuda/mma/wide.cuh"

namespace sluice::cuda {

template <Storage kStorage, int kWidth, int kTerms>
cudaError_t start_wide(const Product& product, cudaStream_t stream) {
  using W = Wide<kStorage, kWidth, kTerms>;
  return start_everywhere(reinterpret_cast<const void*>(multiply_wide<kStorage, kWidth, kTerms>), &product,
                          {W::kThreads, W::shared_bytes()}, stream);
}

template <Storage kStorage, int kWidth>
cudaError_t start_terms(const Product& product, cudaStream_t stream) {
  if (product.input.terms == 1) return start_wide<kStorage, kWidth, 1>(product, stream);
  if constexpr (kWidth <= widest(kMostTerms))
    return start_wide<kStorage, kWidth, kMostTerms>(product, stream);
  return cudaErrorInvalidValue;
}

template <Storage kStorage, int kTerms, bool kInOrder>
cudaError_t start_narrow(const Product& product, cudaStream_t stream) {
  return start_everywhere(reinterpret_cast<const void*>(multiply_narrow<kStorage, kTerms, kInOrder>),
                          &product, {kNarrowWarps * kLanes, narrow_shared_bytes(kStorage)}, stream);
}

template <Storage kStorage>
cudaError_t start_any_narrow(const Product& product, cudaStream_t stream) {
  if (product.input.terms > 1)
    return start_narrow<kStorage, kMostTerms, is_integer(kStorage)>(product, stream);
  if constexpr (!is_integer(kStorage))
    if (!product.input.in_order) return start_narrow<kStorage, 1, false>(product, stream);
  return start_narrow<kStorage, 1, true>(product, stream);
}

template <Storage kStorage>
cudaError_t start_any(const Product& product, const Launch& launch) {
  switch (launch.width) {
    case 0:
      return start_any_narrow<kStorage>(product, launch.stream);
    case 1:
      return start_terms<kStorage, 1>(product, launch.stream);
    case 2:
      return start_terms<kStorage, 2>(product, launch.stream);
    default:
      return start_terms<kStorage, 3>(product, launch.stream);
  }
}

}  // namespace sluice::cuda
