// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/warpgroup.cuh"

namespace sluice::cuda {

WarpgroupKernel warpgroup_int4_g32(TileLimits tiles) { return warpgroup_kernel_of<Storage::int4_g32>(tiles); }

}  // namespace sluice::cuda
