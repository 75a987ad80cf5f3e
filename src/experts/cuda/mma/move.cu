// SPDX-License-Identifier: Apache-2.0
// Before and after the products: a call's rows to planes of bf16 terms, and the ordered sum of a token's
// experts.
#include <cuda_runtime.h>

#include "experts/cuda/mma/element.cuh"
#include "experts/cuda/mma/multiply.h"
#include "experts/cuda/mma/ptx.cuh"
#include "experts/cuda/mma/start.h"

namespace sluice::cuda {
namespace {

constexpr int kMoveThreads = 256;

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
  const InputColumns in{s.dtype, s.width, order, s.weights == nullptr ? nullptr : s.weights + row};
  for (int k = static_cast<int>(threadIdx.x); k < s.out.columns; k += kMoveThreads) {
    const float value = input_value(in, from, k);
    const Terms terms = split(value);
    std::uint16_t* to = s.out.data + static_cast<std::size_t>(row) * s.out.stride + s.out.place(k);
    for (int term = 0; term < kMostTerms; ++term)
      if (term < s.out.terms) to[term * s.out.plane] = terms.of[term];
  }
}

/// Neighbouring columns that a thread adds up.
template <int kColumns>
struct alignas(4 * kColumns) Neighbours {
  float of[kColumns];
};

/// Multiplied and added one by one, as sluice::combine does it. Rows are read several at a time.
template <int kColumns>
__global__ void __launch_bounds__(kMoveThreads) combine_rows(const __grid_constant__ Combine c) {
  using Some = Neighbours<kColumns>;
  constexpr int kRows = 4;
  wait_for_earlier();
  start_later();
  const std::size_t token = blockIdx.x, first = token * static_cast<std::size_t>(c.top_k);
  const int column = kColumns * (static_cast<int>(blockIdx.y) * kMoveThreads + static_cast<int>(threadIdx.x));
  if (column >= c.width || (c.leave_unowned && c.local[first] < 0)) return;
  Some sum{};
  for (int j = 0; j < c.top_k; j += kRows) {
    Some rows[kRows];
    bool there[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::size_t slot = first + static_cast<std::size_t>(j + i);
      there[i] = j + i < c.top_k && c.local[slot] >= 0;
      if (there[i]) rows[i] = *reinterpret_cast<const Some*>(c.rows + slot * c.width + column);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (!there[i]) continue;
      const float weight = c.weights == nullptr ? 1.0f : c.weights[first + static_cast<std::size_t>(j + i)];
#pragma unroll
      for (int k = 0; k < kColumns; ++k) sum.of[k] = __fadd_rn(sum.of[k], __fmul_rn(weight, rows[i].of[k]));
    }
  }
  *reinterpret_cast<Some*>(c.out + token * c.width + column) = sum;
}

template <int kColumns>
cudaError_t start_combine(const Combine& combine, cudaStream_t stream) {
  constexpr int kBlockColumnsOut = kColumns * kMoveThreads;
  const dim3 grid(static_cast<unsigned>(combine.tokens),
                  static_cast<unsigned>((combine.width + kBlockColumnsOut - 1) / kBlockColumnsOut));
  return start_grid(reinterpret_cast<const void*>(combine_rows<kColumns>), &combine, grid, {kMoveThreads, 0},
                    stream, After::ours);
}

}  // namespace

cudaError_t stage(const Stage& stage, cudaStream_t stream, After after) {
  const dim3 grid(static_cast<unsigned>(stage.count));
  return start_grid(reinterpret_cast<const void*>(stage_rows), &stage, grid, {kMoveThreads, 0}, stream,
                    after);
}

cudaError_t combine(const Combine& combine, cudaStream_t stream) {
  const bool fours = combine.width % 4 == 0 && reinterpret_cast<std::uintptr_t>(combine.out) % 16 == 0;
  return fours ? start_combine<4>(combine, stream) : start_combine<1>(combine, stream);
}

}  // namespace sluice::cuda
