// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/slices_kernel.cuh"

namespace sluice::cuda {

DecodeKernel slices_int4_g128(int k_blocks) { return kernel_of<Storage::int4_g128>(k_blocks); }

}  // namespace sluice::cuda
