// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "testing/cuda/ceilings.h"

namespace sluice::testing {
namespace {

constexpr int kReaders = 512, kLoads = 8;
constexpr int kMultipliers = 256, kTiles = 8;  // independent sums of a warp
constexpr int kBlocks = 2;                     // a multiprocessor

__global__ void __launch_bounds__(kReaders) read_all(const uint4* data, std::size_t rounds, unsigned* sink) {
  const std::size_t stride = std::size_t{gridDim.x} * kReaders;
  const uint4* at = data + std::size_t{blockIdx.x} * kReaders + threadIdx.x;
  uint4 sum{};
  for (std::size_t round = 0; round < rounds; ++round, at += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) loaded[i] = __ldcs(at + i * stride);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      sum.x |= loaded[i].x;
      sum.y |= loaded[i].y;
      sum.z |= loaded[i].z;
      sum.w |= loaded[i].w;
    }
  }
  // The memory is 0x5A throughout, but the compiler cannot know.
  if ((sum.x | sum.y | sum.z | sum.w) == ~0u) *sink = sum.x;
}

/// Numbers near 1 of any mantissa, as the power that products take depends on their bits.
__device__ unsigned two_bf16(unsigned seed) {
  const unsigned mixed = seed * 0x9E3779B1u ^ (seed >> 3) * 0x85EBCA6Bu;
  return (mixed & 0x807F807Fu) | 0x3F803F80u;
}

__global__ void __launch_bounds__(kMultipliers) multiply(int rounds, float* sink) {
  unsigned a[4], b[kTiles][2];
  float sum[kTiles][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = two_bf16(threadIdx.x * 31 + i);
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int i = 0; i < 2; ++i) b[t][i] = two_bf16(threadIdx.x * 17 + 2 * t + i + 99);
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};\n"
          : "+f"(sum[t][0]), "+f"(sum[t][1]), "+f"(sum[t][2]), "+f"(sum[t][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[t][0]), "r"(b[t][1]));
  float all = 0;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) all += sum[t][0] + sum[t][1] + sum[t][2] + sum[t][3];
  if (all == 12345.678f) *sink = all;
}

std::size_t bytes_of_round(int multiprocessors) {
  return std::size_t{kBlocks} * static_cast<std::size_t>(multiprocessors) * kReaders * kLoads * sizeof(uint4);
}

}  // namespace

std::size_t ReadLaunch::bytes_read() const {
  return bytes / bytes_of_round(multiprocessors) * bytes_of_round(multiprocessors);
}

cudaError_t ReadLaunch::start(cudaStream_t stream) const {
  read_all<<<kBlocks * multiprocessors, kReaders, 0, stream>>>(
      reinterpret_cast<const uint4*>(data), bytes / bytes_of_round(multiprocessors), sink);
  return cudaGetLastError();
}

double ProductLaunch::flops() const {
  return 2.0 * 16 * 8 * 16 * kTiles * rounds * (kMultipliers / 32) * kBlocks * multiprocessors;
}

cudaError_t ProductLaunch::start(cudaStream_t stream) const {
  multiply<<<kBlocks * multiprocessors, kMultipliers, 0, stream>>>(rounds, sink);
  return cudaGetLastError();
}

}  // namespace sluice::testing
