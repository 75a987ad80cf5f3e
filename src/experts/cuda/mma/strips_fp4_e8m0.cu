// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/decode_strips.cuh"

namespace sluice::cuda {

DecodeKernel strips_fp4_e8m0() { return strips_kernel_of<Storage::fp4_e8m0>(); }

}  // namespace sluice::cuda
