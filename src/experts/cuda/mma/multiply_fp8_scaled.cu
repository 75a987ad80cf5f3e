// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/product.cuh"

namespace sluice::cuda {

cudaError_t multiply_fp8_scaled(const Product& product, const Launch& launch) {
  return start_any<Storage::fp8_scaled>(product, launch);
}

}  // namespace sluice::cuda
