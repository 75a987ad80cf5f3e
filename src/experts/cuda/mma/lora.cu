// SPDX-License-Identifier: Apache-2.0
// The two small products of an adapter. A warp has a sum of A, each lane every 32nd column and then a tree,
// and a thread one of B: at rank 16 both together are a hundredth of an expert's multiply-adds, so what
// matters is that loads do not wait for each other. What earlier kernels of the call wrote is read past L1.
#include "experts/cuda/mma/lora.h"

#include <cuda_runtime.h>

#include "experts/cuda/mma/ptx.cuh"
#include "experts/cuda/mma/start.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cuda {
namespace {

constexpr int kLoraThreads = 256, kLoraWarps = kLoraThreads / kLanes;
/// Columns of the input that a block has in shared memory at a time.
constexpr int kLoraColumns = 1024;

struct ReadF32 {
  using Stored = float;
  static __device__ float number(float value) { return value; }
};
struct ReadBf16 {
  using Stored = std::uint16_t;
  static __device__ float number(std::uint16_t bits) { return format::bf16_to_float(bits); }
};
struct ReadF16 {
  using Stored = std::uint16_t;
  static __device__ float number(std::uint16_t bits) { return format::f16_to_float(bits); }
};

/// Calls f.operator()<Read>(). Outside of loops: loads that wait for a type cannot be many at a time.
template <class F>
__device__ auto visit(DType dtype, F f) {
  if (dtype == DType::bf16) return f.template operator()<ReadBf16>();
  if (dtype == DType::f16) return f.template operator()<ReadF16>();
  return f.template operator()<ReadF32>();
}

template <class Read>
__device__ float element(const std::byte* data, std::int64_t index) {
  return Read::number(reinterpret_cast<const typename Read::Stored*>(data)[index]);
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

/// Some columns of a slot's input, for the rows of A.
struct Columns {
  const float* x;             // [count]
  const std::int32_t* order;  // [count] the matrix's columns, -1 for none; null: they follow each other
  int first, count;
};

/// Adds to `sum` what a lane's columns of a row give: every 32nd.
__device__ float add_columns(const CardMatrix& a, int row, const Columns& columns, float sum) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  return visit(a.dtype, [&]<class Read>() {
    const std::int64_t at = row * a.row_stride, stride = a.col_stride;
    if (columns.order != nullptr) {
      for (int k = lane; k < columns.count; k += kLanes)
        if (const int column = columns.order[k]; column >= 0)
          sum = __fmaf_rn(element<Read>(a.data, at + column * stride), columns.x[k], sum);
    } else if (stride == 1) {
#pragma unroll 8
      for (int k = lane; k < columns.count; k += kLanes)
        sum = __fmaf_rn(element<Read>(a.data, at + columns.first + k), columns.x[k], sum);
    } else {
#pragma unroll 8
      for (int k = lane; k < columns.count; k += kLanes)
        sum = __fmaf_rn(element<Read>(a.data, at + (columns.first + k) * stride), columns.x[k], sum);
    }
    return sum;
  });
}

/// What a block projects: a slot's input, value(k) in `columns` columns, for the rows of two matrices.
struct Projection {
  const CardDelta* deltas[2];
  const std::int32_t* order;  // [columns], as of Columns
  int columns;
};

template <class Value>
__device__ void project(const LoraWork& w, const Projection& p, Value value) {
  __shared__ float x[kLoraColumns];
  const Rank rank(w.lora.rank);
  const CardDelta* delta = rank.matrix > 1 ? nullptr : p.deltas[rank.matrix];
  const bool mine = delta != nullptr && rank.index < delta->rank;
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < p.columns; first += kLoraColumns) {
    const int count = min(kLoraColumns, p.columns - first);
    __syncthreads();  // nobody reads the columns before
#pragma unroll
    for (int k = static_cast<int>(threadIdx.x); k < kLoraColumns; k += kLoraThreads)
      if (k < count) x[k] = value(first + k);
    __syncthreads();
    if (mine)
      sum = add_columns(delta->a, rank.index,
                        {x, p.order == nullptr ? nullptr : p.order + first, first, count}, sum);
  }
  if (!mine) return;
  for (int step = kLanes / 2; step > 0; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, step));
  if (threadIdx.x % kLanes == 0)
    w.low[(std::size_t{blockIdx.x} * 2 + rank.matrix) * w.lora.rank + rank.index] =
        __fmul_rn(delta->scale, sum);
}

__global__ void __launch_bounds__(kLoraThreads) project_rows(const __grid_constant__ LoraInput in) {
  const LoraWork& w = in.work;
  if (!has_position(w)) return;
  const Adding adding(w, static_cast<int>(blockIdx.x));
  if (adding.expert == nullptr) return;
  const std::byte* row = in.rows.data + adding.slot / w.top_k * in.rows.row_stride;
  const float weight = in.weights == nullptr ? 1.0f : in.weights[adding.slot];
  const Projection projection{{&adding.expert->gate, &adding.expert->up}, nullptr, in.rows.width};
  visit(in.rows.dtype, [&]<class Read>() {
    project(w, projection, [&](int k) { return __fmul_rn(weight, element<Read>(row, k)); });
  });
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
  if (adding.expert == nullptr) return;
  project(w, {{&adding.expert->down, nullptr}, order_of(w, adding.slot), in.channels},
          [&](int k) { return read(in.mid, blockIdx.x, k); });
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
    sum = visit(delta.b.dtype, [&]<class Read>() {
      const std::int64_t at = row * delta.b.row_stride, stride = delta.b.col_stride;
#pragma unroll 8
      for (int r = 0; r < delta.rank; ++r)
        sum = __fmaf_rn(element<Read>(delta.b.data, at + r * stride), __ldcg(low + r), sum);
      return sum;
    });
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
