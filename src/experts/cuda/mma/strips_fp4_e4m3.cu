// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/decode_strips.cuh"

namespace sluice::cuda {

DecodeKernel strips_fp4_e4m3() { return strips_kernel_of<Storage::fp4_e4m3>(); }

}  // namespace sluice::cuda
