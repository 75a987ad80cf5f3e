// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/product.cuh"

namespace sluice::cuda {

cudaError_t multiply_fp4_e4m3(const Product& product, const Launch& launch) {
  return start_any<Storage::fp4_e4m3>(product, launch);
}

}  // namespace sluice::cuda
