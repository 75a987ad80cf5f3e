// SPDX-License-Identifier: Apache-2.0
// In builds that are not for SM90.
#include "experts/cuda/mma/warpgroup.h"

namespace sluice::cuda {

bool has_warpgroups(const ExpertLayout& /*layout*/) { return false; }
std::size_t positions_for(std::size_t /*slots*/, int /*local_experts*/) { return 0; }
cudaError_t arrange(const Arrange& /*arrange*/, cudaStream_t /*stream*/) { return cudaErrorNotSupported; }
cudaError_t start_warpgroups(WarpgroupProduct /*product*/, int /*most*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}

}  // namespace sluice::cuda
