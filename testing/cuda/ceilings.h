// SPDX-License-Identifier: Apache-2.0
// Kernels that do nothing but read, or nothing but multiply: what a card does at most.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace sluice::testing {

/// Reads from end to end; `sink` is a word that is written if the sum is one that it never is. Two blocks a
/// multiprocessor with 8 loads of 16 bytes a thread in flight: 4.50 to 4.53 TB/s of an H200, where other
/// numbers of blocks and loads, and a stretch a block, gave 4.49 to 4.54.
struct ReadLaunch {
  const std::byte* data;
  std::size_t bytes;
  unsigned* sink;
  int multiprocessors;

  /// Whole rounds of all blocks.
  std::size_t bytes_read() const;
  cudaError_t start(cudaStream_t stream) const;
};

/// Products of 16 x 8 x 16 in bf16 with float32 sums, sixteen warps a multiprocessor.
struct ProductLaunch {
  float* sink;
  int multiprocessors;
  int rounds;

  double flops() const;
  cudaError_t start(cudaStream_t stream) const;
};

}  // namespace sluice::testing
