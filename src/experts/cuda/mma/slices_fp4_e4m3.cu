// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/slices_kernel.cuh"

namespace sluice::cuda {

DecodeKernel slices_fp4_e4m3(int k_blocks) { return kernel_of<Storage::fp4_e4m3>(k_blocks); }

}  // namespace sluice::cuda
