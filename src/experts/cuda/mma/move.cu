// SPDX-License-Identifier: Apache-2.0
// Before and after the products: a call's rows to planes of bf16 terms, and the ordered sum of a token's
// experts.
#include <cuda_runtime.h>

#include "experts/cuda/mma/multiply.h"
#include "experts/cuda/mma/ptx.cuh"
#include "experts/cuda/mma/start.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cuda {
namespace {

constexpr int kMoveThreads = 256;

__device__ float element(const Stage& s, const std::byte* row, int column) {
  if (s.dtype == DType::f32) return reinterpret_cast<const float*>(row)[column];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[column];
  return s.dtype == DType::bf16 ? format::bf16_to_float(bits) : format::f16_to_float(bits);
}

__global__ void __launch_bounds__(kMoveThreads) stage_rows(const __grid_constant__ Stage s) {
  wait_for_earlier();
  start_later();
  const int row = static_cast<int>(blockIdx.x);
  const std::byte* from = s.rows + row / s.slots_per_row * s.row_stride;
  const std::int32_t expert = s.local == nullptr ? 0 : load_fresh(s.local + row);
  if (expert < 0) return;  // nobody reads the row
  const std::int32_t* order = s.orders == nullptr
                                  ? nullptr
                                  : reinterpret_cast<const std::int32_t*>(s.orders + expert * s.expert_bytes);
  for (int k = static_cast<int>(threadIdx.x); k < s.out.columns; k += kMoveThreads) {
    float value = 0;
    const int column = k >= s.width ? -1 : order != nullptr ? order[k] : k;
    if (column >= 0) {
      value = element(s, from, column);
      if (s.weights != nullptr) value = __fmul_rn(s.weights[row], value);
    }
    const Terms terms = split(value);
    std::uint16_t* to = s.out.data + static_cast<std::size_t>(row) * s.out.stride + s.out.place(k);
    for (int term = 0; term < kMostTerms; ++term)
      if (term < s.out.terms) to[term * s.out.plane] = terms.of[term];
  }
}

/// Multiplied and added one by one, as sluice::combine does it.
__global__ void __launch_bounds__(kMoveThreads) combine_rows(const __grid_constant__ Combine c) {
  wait_for_earlier();
  start_later();
  const std::size_t token = blockIdx.x, first = token * static_cast<std::size_t>(c.top_k);
  const int column = static_cast<int>(blockIdx.y) * kMoveThreads + static_cast<int>(threadIdx.x);
  if (column >= c.width || (c.leave_unowned && c.local[first] < 0)) return;
  float sum = 0;
  for (int j = 0; j < c.top_k; ++j) {
    const std::size_t slot = first + static_cast<std::size_t>(j);
    if (c.local[slot] < 0) continue;
    const float weight = c.weights == nullptr ? 1.0f : c.weights[slot];
    sum = __fadd_rn(sum, __fmul_rn(weight, c.rows[slot * c.width + column]));
  }
  c.out[token * c.width + column] = sum;
}

}  // namespace

cudaError_t stage(const Stage& stage, cudaStream_t stream, After after) {
  const dim3 grid(static_cast<unsigned>(stage.count));
  return start_grid(reinterpret_cast<const void*>(stage_rows), &stage, grid, {kMoveThreads, 0}, stream,
                    after);
}

cudaError_t combine(const Combine& combine, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(combine.tokens),
                  static_cast<unsigned>((combine.width + kMoveThreads - 1) / kMoveThreads));
  return start_grid(reinterpret_cast<const void*>(combine_rows), &combine, grid, {kMoveThreads, 0}, stream,
                    After::ours);
}

}  // namespace sluice::cuda
