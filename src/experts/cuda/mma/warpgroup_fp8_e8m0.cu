// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/warpgroup.cuh"

namespace sluice::cuda {

WarpgroupKernel warpgroup_fp8_e8m0(TileLimits tiles) { return warpgroup_kernel_of<Storage::fp8_e8m0>(tiles); }

}  // namespace sluice::cuda
