// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/product.cuh"

namespace sluice::cuda {

cudaError_t multiply_q5_k(const Product& product, const Launch& launch) {
  return start_any<Storage::q5_k>(product, launch);
}

}  // namespace sluice::cuda
