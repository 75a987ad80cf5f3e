// SPDX-License-Identifier: Apache-2.0
// The router's linear layer in float32. An element is summed by sixteen lanes in the order of `dot`
// (engine/router.h): each lane every sixteenth product, nothing fused, and then the sums pairwise. So it has
// the processor's bits, and depends neither on the other rows nor on how many of each a thread computes.
#include <cuda_runtime.h>

#include "experts/cuda/routing/launch.h"
#include "experts/cuda/routing/route.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cuda {
namespace {

constexpr int kLanes = 16, kTeams = 16;  // lanes an element, and so many of these teams a block
/// Rows and outputs of a team: many rows share loads, few rows should be many blocks.
constexpr int kManyRows = 4, kManyOutputs = 4, kFewRows = 16;

template <DType kType>
__device__ float element(const std::byte* row, int column) {
  if constexpr (kType == DType::f32) {
    return reinterpret_cast<const float*>(row)[column];
  } else {
    const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[column];
    return kType == DType::bf16 ? format::bf16_to_float(bits) : format::f16_to_float(bits);
  }
}

/// Of a team's lanes, in every lane.
__device__ float add_lanes(float sum) {
  for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
  return sum;
}

template <DType kType, int kRows, int kOutputs>
__global__ void __launch_bounds__(kLanes* kTeams) multiply(const __grid_constant__ Logits l) {
  const int lane = static_cast<int>(threadIdx.x);
  const int first_output = static_cast<int>(blockIdx.y * kTeams + threadIdx.y) * kOutputs;
  const int first_row = static_cast<int>(blockIdx.x) * kRows;
  const int width = l.rows.width;
  const std::byte* rows[kRows];
  const float* weights[kOutputs];
  // What is beyond the last is the last once more, and is not written.
  for (int r = 0; r < kRows; ++r)
    rows[r] = l.rows.data + std::ptrdiff_t{min(first_row + r, l.rows.rows - 1)} * l.rows.row_stride;
  for (int o = 0; o < kOutputs; ++o)
    weights[o] = l.weight + std::ptrdiff_t{min(first_output + o, l.outputs - 1)} * width;
  float sums[kRows][kOutputs] = {};
#pragma unroll(kRows* kOutputs == 1 ? 32 : 4)
  for (int k = lane; k < width; k += kLanes) {
    float x[kRows], w[kOutputs];
    for (int r = 0; r < kRows; ++r) x[r] = element<kType>(rows[r], k);
    for (int o = 0; o < kOutputs; ++o) w[o] = __ldg(weights[o] + k);
    for (int r = 0; r < kRows; ++r)
      for (int o = 0; o < kOutputs; ++o) sums[r][o] = __fadd_rn(sums[r][o], __fmul_rn(x[r], w[o]));
  }
  for (int r = 0; r < kRows; ++r)
    for (int o = 0; o < kOutputs; ++o) {
      const int row = first_row + r, output = first_output + o;
      const float sum = add_lanes(sums[r][o]);
      if (lane != 0 || row >= l.rows.rows || output >= l.outputs) continue;
      l.out[std::ptrdiff_t{row} * l.outputs + output] = l.bias == nullptr ? sum : sum + l.bias[output];
    }
}

template <DType kType, int kRows, int kOutputs>
cudaError_t start(const Logits& l, cudaStream_t stream) {
  const auto blocks = [](int count, int of) { return static_cast<unsigned>((count + of - 1) / of); };
  return launch(multiply<kType, kRows, kOutputs>, l,
                dim3(blocks(l.rows.rows, kRows), blocks(l.outputs, kTeams * kOutputs)), dim3(kLanes, kTeams),
                stream);
}

template <DType kType>
cudaError_t start_for(const Logits& l, cudaStream_t stream) {
  return l.rows.rows <= kFewRows ? start<kType, 1, 1>(l, stream)
                                 : start<kType, kManyRows, kManyOutputs>(l, stream);
}

}  // namespace

cudaError_t logits(const Logits& logits, cudaStream_t stream) {
  switch (logits.rows.dtype) {
    case DType::bf16:
      return start_for<DType::bf16>(logits, stream);
    case DType::f16:
      return start_for<DType::f16>(logits, stream);
    default:
      return start_for<DType::f32>(logits, stream);
  }
}

}  // namespace sluice::cuda
