// SPDX-License-Identifier: Apache-2.0
// Before and after the products: a call's rows to planes of bf16 terms, and the ordered sum of a token's
// experts.
#include <cuda_runtime.h>

#include "experts/cuda/mma/multiply.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cuda {
namespace {

constexpr int kMoveThreads = 256;

__device__ float element(const Stage& s, std::size_t index) {
  if (s.dtype == DType::f32) return reinterpret_cast<const float*>(s.rows)[index];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(s.rows)[index];
  return s.dtype == DType::bf16 ? format::bf16_to_float(bits) : format::f16_to_float(bits);
}

__global__ void __launch_bounds__(kMoveThreads) stage_rows(const __grid_constant__ Stage s) {
  const std::size_t row = blockIdx.x, source = s.source == nullptr ? blockIdx.x : s.source[blockIdx.x];
  for (std::size_t k = blockIdx.y * kMoveThreads + threadIdx.x; k < s.out.stride;
       k += std::size_t{gridDim.y} * kMoveThreads) {
    float value = 0;
    if (k < static_cast<std::size_t>(s.width)) {
      value = element(s, source * s.width + k);
      if (s.weights != nullptr) value = __fmul_rn(s.weights[row], value);
    }
    const Terms terms = split(value);
    std::uint16_t* to = s.out.data + row * s.out.stride + k;
    for (int term = 0; term < kMostTerms; ++term)
      if (term < s.out.terms) to[term * s.out.plane] = terms.of[term];
  }
}

__global__ void __launch_bounds__(kMoveThreads)
    clear_columns(const __grid_constant__ Planes planes, int first) {
  for (int term = 0; term < planes.terms; ++term)
    for (std::size_t k = first + threadIdx.x; k < planes.stride; k += kMoveThreads)
      planes.data[term * planes.plane + blockIdx.x * planes.stride + k] = 0;
}

/// Multiplied and added one by one, as sluice::combine does it.
__global__ void __launch_bounds__(kMoveThreads) combine_rows(const __grid_constant__ Combine c) {
  const std::size_t token = blockIdx.x;
  const std::int32_t* positions = c.positions + token * c.top_k;
  for (int column = blockIdx.y * kMoveThreads + threadIdx.x; column < c.width;
       column += gridDim.y * kMoveThreads) {
    float sum = 0;
    for (int j = 0; j < c.top_k; ++j) {
      const std::int32_t position = positions[j];
      if (position < 0) continue;
      const float weight = c.weights == nullptr ? 1.0f : c.weights[token * c.top_k + j];
      sum = __fadd_rn(sum, __fmul_rn(weight, c.rows[static_cast<std::size_t>(position) * c.width + column]));
    }
    c.out[token * c.width + column] = sum;
  }
}

}  // namespace

cudaError_t stage(const Stage& stage, cudaStream_t stream) {
  if (stage.count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(stage.count),
                  static_cast<unsigned>((stage.out.stride + kMoveThreads - 1) / kMoveThreads));
  stage_rows<<<grid, kMoveThreads, 0, stream>>>(stage);
  return cudaGetLastError();
}

cudaError_t clear_tail(const Planes& planes, int rows, int first, cudaStream_t stream) {
  if (rows == 0 || static_cast<std::size_t>(first) == planes.stride) return cudaSuccess;
  clear_columns<<<static_cast<unsigned>(rows), kMoveThreads, 0, stream>>>(planes, first);
  return cudaGetLastError();
}

cudaError_t combine(const Combine& combine, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(combine.tokens),
                  static_cast<unsigned>((combine.width + kMoveThreads - 1) / kMoveThreads));
  combine_rows<<<grid, kMoveThreads, 0, stream>>>(combine);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
