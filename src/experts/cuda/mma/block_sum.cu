// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/block_sum.h"

#include <cuda_runtime.h>

#include "experts/cuda/mma/ptx.cuh"
#include "experts/cuda/mma/start.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) add(const __grid_constant__ BlockSum s) {
  wait_for_earlier();
  start_later();
  const std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < s.count) s.out[i] = __fadd_rn(s.routed[i], s.shared[i]);
}

}  // namespace

cudaError_t add_blocks(const BlockSum& sum, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((sum.count + kThreads - 1) / kThreads));
  return start_grid(reinterpret_cast<const void*>(add), &sum, grid, {kThreads, 0}, stream, After::ours);
}

}  // namespace sluice::cuda
