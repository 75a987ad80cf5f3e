// SPDX-License-Identifier: Apache-2.0
// Starts kernels of one argument.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace sluice::cuda {

/// What a block is made of.
struct BlockShape {
  int threads;
  std::size_t shared;
};

/// On SM90 and newer a kernel of ours may be started before the one of ours in front of it has ended: it
/// waits itself (ptx.cuh).
enum class After { everything, ours };

/// Starts function(argument) on a grid.
cudaError_t start_grid(const void* function, const void* argument, dim3 grid, const BlockShape& block,
                       cudaStream_t stream, After after);

/// The same on as many blocks as the card holds at once, for kernels that share out their work.
cudaError_t start_everywhere(const void* function, const void* argument, const BlockShape& block,
                             cudaStream_t stream);

/// The same for kernels whose blocks wait for each other.
cudaError_t start_together(const void* function, const void* argument, const BlockShape& block,
                           cudaStream_t stream);

}  // namespace sluice::cuda
