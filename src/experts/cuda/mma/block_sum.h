// SPDX-License-Identifier: Apache-2.0
// What the routed experts and the shared one gave, together.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace sluice::cuda {

/// out[i] = routed[i] + shared[i]; `out` may be `routed`.
struct BlockSum {
  const float* routed;
  const float* shared;
  float* out;
  std::size_t count;
};
cudaError_t add_blocks(const BlockSum& sum, cudaStream_t stream);

}  // namespace sluice::cuda
