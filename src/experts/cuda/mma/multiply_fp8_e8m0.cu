// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/product.cuh"

namespace sluice::cuda {

cudaError_t multiply_fp8_e8m0(const Product& product, const Launch& launch) {
  return start_any<Storage::fp8_e8m0>(product, launch);
}

}  // namespace sluice::cuda
