// SPDX-License-Identifier: Apache-2.0
// What compute-sanitizer's racecheck does not see (docs/cuda.md, whole strips): one warp copies by cp.async,
// another reads, and mbarriers order both. Where all lanes of the reader arrive there is no hazard; where
// lane 0 arrives for lanes that it met in __syncwarp, 2025.3.1 reports a "potential WAR hazard".
//
// To build it:
//   nvcc -std=c++20 --expt-relaxed-constexpr -Isrc -Iinclude -arch=sm_90a -o racecheck_syncwarp
// and this file; to see both:
//   compute-sanitizer --tool racecheck ./racecheck_syncwarp all
//   compute-sanitizer --tool racecheck ./racecheck_syncwarp one
#include <cstdio>
#include <cstring>

#include "experts/cuda/mma/bulk.cuh"
#include "experts/cuda/mma/ptx.cuh"
#include "experts/cuda/mma/strip_inputs.cuh"

namespace {

using namespace sluice::cuda;

constexpr int kRounds = 16;

template <bool kAllArrive>
__global__ void copy_and_read(const uint4* from, uint4* to) {
  __shared__ uint4 buffers[2][kLanes];
  __shared__ std::uint64_t full[2], empty[2];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (threadIdx.x < 2) {
    init_barrier(shared_address(&full[threadIdx.x]), kLanes);
    init_barrier(shared_address(&empty[threadIdx.x]), kAllArrive ? kLanes : 1);
  }
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {
    const int buffer = round % 2;
    const std::uint32_t filled = shared_address(&full[buffer]), freed = shared_address(&empty[buffer]);
    if (threadIdx.x >= kLanes) {
      if (round >= 2) wait_for(freed, (round / 2 - 1) % 2);
      copy_async(shared_address(&buffers[buffer][lane]), from + round * kLanes + lane);
      arrive_after_copies(filled);
    } else {
      wait_for(filled, round / 2 % 2);
      to[round * kLanes + lane] = buffers[buffer][(lane + 1) % kLanes];
      __syncwarp();
      if (kAllArrive || lane == 0) arrive(freed);
    }
  }
}

}  // namespace

int main(int count, char** words) {
  constexpr std::size_t kBytes = sizeof(uint4) * kRounds * kLanes;
  uint4 *from = nullptr, *to = nullptr;
  cudaMalloc(&from, kBytes);
  cudaMalloc(&to, kBytes);
  cudaMemset(from, 1, kBytes);
  if (count > 1 && std::strcmp(words[1], "all") == 0)
    copy_and_read<true><<<4, 2 * kLanes>>>(from, to);
  else
    copy_and_read<false><<<4, 2 * kLanes>>>(from, to);
  std::puts(cudaGetErrorString(cudaDeviceSynchronize()));
}
