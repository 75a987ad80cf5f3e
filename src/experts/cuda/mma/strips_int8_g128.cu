// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/decode_strips.cuh"

namespace sluice::cuda {

DecodeKernel strips_int8_g128() { return strips_kernel_of<Storage::int8_g128>(); }

}  // namespace sluice::cuda
