// SPDX-License-Identifier: Apache-2.0
// Ids and weights that need no router: the shared expert's, and those of rows that are with their experts.
#include <cuda_runtime.h>

#include "experts/cuda/routing/launch.h"
#include "experts/cuda/routing/route.h"
#include "routing/scores.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

dim3 blocks_for(int count) { return dim3((static_cast<unsigned>(count) + kThreads - 1) / kThreads); }

__device__ int index_of_thread() {
  return static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
}

__global__ void __launch_bounds__(kThreads) write_shared(const __grid_constant__ SharedLists lists) {
  const int token = index_of_thread();
  if (token >= lists.tokens) return;
  lists.ids[token] = 0;
  lists.weights[token] = lists.gated ? score::sigmoid(lists.weights[token]) : 1.0f;
}

/// The last expert whose rows begin at or before `row`. Whatever the offsets are, it is one.
__device__ int owner_of(const RowIds& rows, int row) {
  int expert = 0, end = rows.local_experts;
  while (end - expert > 1) {
    const int middle = expert + (end - expert) / 2;
    (rows.offsets[middle] <= row ? expert : end) = middle;
  }
  return expert;
}

__global__ void __launch_bounds__(kThreads) write_row_ids(const __grid_constant__ RowIds rows) {
  const int index = index_of_thread();
  if (index >= rows.count) return;
  const int row = rows.first + index;
  if (rows.offsets != nullptr) {
    rows.ids[index] = row < rows.offsets[rows.local_experts] ? owner_of(rows, row) : -1;
  } else {
    const int expert = row / rows.max_tokens;
    rows.ids[index] = row % rows.max_tokens < rows.counts[expert] ? expert : -1;
  }
}

}  // namespace

cudaError_t shared_lists(const SharedLists& lists, cudaStream_t stream) {
  return launch(write_shared, lists, blocks_for(lists.tokens), dim3(kThreads), stream);
}

cudaError_t row_ids(const RowIds& rows, cudaStream_t stream) {
  return launch(write_row_ids, rows, blocks_for(rows.count), dim3(kThreads), stream);
}

}  // namespace sluice::cuda
