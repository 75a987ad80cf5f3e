// SPDX-License-Identifier: Apache-2.0
// The two small products of an adapter. A warp has a sum of A and a thread one of B: at rank 16 both together
// are a hundredth of an expert's multiply-adds. What earlier kernels of the call wrote is read past L1.
#include "experts/cuda/mma/lora.h"

#include <cuda_runtime.h>

#include "experts/cuda/mma/ptx.cuh"
#include "experts/cuda/mma/start.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cuda {
namespace {

constexpr int kLoraThreads = 256, kLoraWarps = kLoraThreads / kLanes;

__device__ float element(DType dtype, const std::byte* data, std::int64_t index) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(data)[index];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(data)[index];
  return dtype == DType::bf16 ? format::bf16_to_float(bits) : format::f16_to_float(bits);
}

__device__ float element(const CardMatrix& m, std::int64_t row, std::int64_t column) {
  return element(m.dtype, m.data, row * m.row_stride + column * m.col_stride);
}

/// A slot, and what it adds.
struct Adding {
  std::int32_t slot;
  const CardLoraExpert* expert;  // null: nothing

  __device__ Adding(const LoraWork& w, int position) : slot(load_fresh(w.slots + position)) {
    const CardLora& lora = w.lora;
    std::int32_t at = -1;
    if (lora.of_slot != nullptr) {
      at = load_fresh(lora.of_slot + slot);
    } else {
      const std::int32_t adapter = load_fresh(lora.of_token + slot / w.top_k);
      if (adapter >= 0 && adapter < lora.adapters)
        at = adapter * lora.local_experts + load_fresh(w.local + slot);
    }
    expert = at < 0 ? nullptr : lora.experts + at;
  }
};

/// The channels of a slot's expert in the order of the strips; null: as they are.
__device__ const std::int32_t* order_of(const LoraWork& w, std::int32_t slot) {
  if (w.orders == nullptr) return nullptr;
  return reinterpret_cast<const std::int32_t*>(w.orders + load_fresh(w.local + slot) * w.expert_bytes);
}

/// Whether a kernel's block has a position. Everybody waits first.
__device__ bool has_position(const LoraWork& w) {
  wait_for_earlier();
  start_later();
  return static_cast<int>(blockIdx.x) < load_fresh(w.owned);
}

/// Which of two matrices, and which of its ranks, is a warp's.
struct Rank {
  int matrix, index;

  __device__ explicit Rank(int ranks) {
    const int warp = static_cast<int>(blockIdx.y) * kLoraWarps + static_cast<int>(threadIdx.x) / kLanes;
    matrix = warp / ranks;
    index = warp % ranks;
  }
};

/// Lanes take columns in turn, each adding its own with add(column, sum), and then their sums as a tree.
template <class Add>
__device__ float sum_of(int columns, Add add) {
  float sum = 0;
#pragma unroll 4
  for (int k = static_cast<int>(threadIdx.x) % kLanes; k < columns; k += kLanes) sum = add(k, sum);
  for (int step = kLanes / 2; step > 0; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, step));
  return sum;
}

__device__ void write_low(const LoraWork& w, const Rank& rank, float value) {
  if (threadIdx.x % kLanes == 0)
    w.low[(std::size_t{blockIdx.x} * 2 + rank.matrix) * w.lora.rank + rank.index] = value;
}

__global__ void __launch_bounds__(kLoraThreads) project_rows(const __grid_constant__ LoraInput in) {
  const LoraWork& w = in.work;
  if (!has_position(w)) return;
  const Adding adding(w, static_cast<int>(blockIdx.x));
  const Rank rank(w.lora.rank);
  if (adding.expert == nullptr || rank.matrix > 1) return;
  const CardDelta& delta = rank.matrix == 0 ? adding.expert->gate : adding.expert->up;
  if (rank.index >= delta.rank) return;
  const std::byte* row = in.rows.data + adding.slot / w.top_k * in.rows.row_stride;
  const float weight = in.weights == nullptr ? 1.0f : in.weights[adding.slot];
  const float sum = sum_of(in.rows.width, [&](int k, float before) {
    const float x = __fmul_rn(weight, element(in.rows.dtype, row, k));
    return __fmaf_rn(element(delta.a, rank.index, k), x, before);
  });
  write_low(w, rank, __fmul_rn(delta.scale, sum));
}

/// A number of a plane, whose terms sum to it without a rounding.
__device__ float read(const Planes& p, std::size_t row, int column) {
  const std::uint16_t* at = p.data + row * p.stride + p.place(column);
  float sum = 0;
  for (int term = p.terms - 1; term >= 0; --term)
    sum = __fadd_rn(sum, format::bf16_to_float(__ldcg(at + term * p.plane)));
  return sum;
}

__global__ void __launch_bounds__(kLoraThreads) project_planes(const __grid_constant__ LoraMid in) {
  const LoraWork& w = in.work;
  if (!has_position(w)) return;
  const Adding adding(w, static_cast<int>(blockIdx.x));
  const Rank rank(w.lora.rank);
  if (adding.expert == nullptr || rank.matrix > 0) return;
  const CardDelta& delta = adding.expert->down;
  if (rank.index >= delta.rank) return;
  const std::int32_t* order = order_of(w, adding.slot);
  const float sum = sum_of(in.channels, [&](int k, float before) {
    const int column = order == nullptr ? k : order[k];
    if (column < 0) return before;
    return __fmaf_rn(element(delta.a, rank.index, column), read(in.mid, blockIdx.x, k), before);
  });
  write_low(w, rank, __fmul_rn(delta.scale, sum));
}

__global__ void __launch_bounds__(kLoraThreads) add_ranks(const __grid_constant__ LoraAdd in) {
  const LoraWork& w = in.work;
  if (!has_position(w)) return;
  const int strip_row = static_cast<int>(blockIdx.y) * kLoraThreads + static_cast<int>(threadIdx.x);
  if (strip_row >= in.strips.strips * kStripRows) return;
  const Adding adding(w, static_cast<int>(blockIdx.x));
  const bool paired = in.strips.paired;
  const bool gate = paired && strip_row % kStripRows < kStripRows / 2;
  int row = paired ? strip_row / kStripRows * (kStripRows / 2) + strip_row % (kStripRows / 2) : strip_row;
  if (row >= in.strips.rows) row = -1;
  const std::int32_t* order = in.down ? nullptr : order_of(w, adding.slot);
  if (row >= 0 && order != nullptr) row = order[row];
  float sum = -0.0f;
  if (adding.expert != nullptr && row >= 0 && row < in.rows) {
    const CardLoraExpert& expert = *adding.expert;
    const CardDelta& delta = in.down ? expert.down : gate ? expert.gate : expert.up;
    const std::size_t matrix = in.down || gate ? 0 : 1;  // as in LoraWork::low
    const float* low = w.low + (std::size_t{blockIdx.x} * 2 + matrix) * w.lora.rank;
    for (int r = 0; r < delta.rank; ++r) sum = __fmaf_rn(element(delta.b, row, r), __ldcg(low + r), sum);
  }
  w.added[blockIdx.x * w.added_stride + strip_row] = sum;
}

/// A block of threads for every slot that there may be, and for some of `units`.
template <class Argument>
cudaError_t start(void (*kernel)(Argument), const Argument& argument, std::int64_t units, int of_block,
                  cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(argument.work.most_slots),
                  static_cast<unsigned>((units + of_block - 1) / of_block));
  return start_grid(reinterpret_cast<const void*>(kernel), &argument, grid, {kLoraThreads, 0}, stream,
                    After::ours);
}

}  // namespace

cudaError_t project_input(const LoraInput& input, cudaStream_t stream) {
  return start(project_rows, input, std::int64_t{2} * input.work.lora.rank, kLoraWarps, stream);
}

cudaError_t project_mid(const LoraMid& mid, cudaStream_t stream) {
  return start(project_planes, mid, mid.work.lora.rank, kLoraWarps, stream);
}

cudaError_t add_low(const LoraAdd& add, cudaStream_t stream) {
  return start(add_ranks, add, std::int64_t{add.strips.strips} * kStripRows, kLoraThreads, stream);
}

}  // namespace sluice::cuda
