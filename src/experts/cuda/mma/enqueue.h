// SPDX-License-Identifier: Apache-2.0
// A layer's routed experts as work in a stream: everything is in the card's memory, nothing is allocated,
// waited for or read back, so that a CUDA graph can hold it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "experts/cuda/mma/lora.h"
#include "experts/cuda/mma/packed.h"
#include "sluice/tensor.h"

namespace sluice::cuda {

/// What becomes of the output of a token that has no expert here.
enum class Unowned : std::uint8_t { zeros, untouched };

/// All pointers into the card's memory.
struct CardCall {
  RowsView input;
  int top_k = 1;
  const std::int32_t* ids = nullptr;         // [rows, top_k] global
  const float* weights = nullptr;            // [rows, top_k]; null: ones
  const std::int32_t* expert_map = nullptr;  // [experts]; null: the same
  float* output = nullptr;                   // [rows, hidden]
  std::byte* workspace = nullptr;            // card_bytes, at a multiple of 256
  cudaStream_t stream = nullptr;
  Unowned unowned = Unowned::zeros;  // rows that are untouched are not read either; of top_k 1
  CardLora lora = {};
};

/// Of a call whose adapters have up to `lora_rank`; 0: it has none.
std::size_t card_bytes(const Packed& packed, const RowsView& input, int top_k, int lora_rank = 0);
/// Throws device where a kernel cannot be started.
void enqueue(const Packed& packed, const CardCall& call);

}  // namespace sluice::cuda
