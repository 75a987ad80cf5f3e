// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/product.cuh"

namespace sluice::cuda {

cudaError_t multiply_int4_g128(const Product& product, const Launch& launch) {
  return start_any<Storage::int4_g128>(product, launch);
}

}  // namespace sluice::cuda
