// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/decode_strips.cuh"

namespace sluice::cuda {

DecodeKernel strips_fp8_scaled() { return strips_kernel_of<Storage::fp8_scaled>(); }

}  // namespace sluice::cuda
