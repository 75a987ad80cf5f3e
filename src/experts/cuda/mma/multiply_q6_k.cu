// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/product.cuh"

namespace sluice::cuda {

cudaError_t multiply_q6_k(const Product& product, const Launch& launch) {
  return start_any<Storage::q6_k>(product, launch);
}

}  // namespace sluice::cuda
