// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters of a call, on the card: x A^T into float32 [position, rank], and B times that into what
// the products add to their sums before bias and activation. Every sum has an order of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "experts/cuda/mma/multiply.h"
#include "sluice/tensor.h"

namespace sluice::cuda {

/// Dense one way or the other; strides in elements.
struct CardMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t row_stride = 0, col_stride = 0;
};

struct CardDelta {
  CardMatrix a, b;
  float scale = 0;
  std::int32_t rank = 0;  // 0: nothing is added
};

struct CardLoraExpert {
  CardDelta gate, up, down;
};

/// What the slots of a call add: as listed, or what the adapter of a slot's token has for its expert.
struct CardLora {
  std::int32_t rank = 0;                    // the largest that deltas may have; 0: nobody adds anything
  const CardLoraExpert* experts = nullptr;  // in any order, or [adapters, local_experts]
  const std::int32_t* of_slot = nullptr;    // [slots] in `experts`, -1 for none
  const std::int32_t* of_token = nullptr;   // without of_slot: [tokens] adapters; others have none
  std::int32_t adapters = 0, local_experts = 0;
};

/// What all kernels here read. Position p is slot slots[p], of which there are *owned.
struct LoraWork {
  CardLora lora;
  const std::int32_t* slots;
  const std::int32_t* owned;
  int most_slots, top_k;
  float* low;    // [positions, 2, rank]: scale * A x of gate and up, or that of down
  float* added;  // [positions, added_stride], a row for each of the strips'
  std::size_t added_stride;
  const std::int32_t* local;  // [slots] local experts
  /// Where experts have an order of the intermediate's channels (act-order of down): channel j of the strips
  /// is order[j] of the matrices, -1 none of them.
  const std::byte* orders;    // of the first expert; null: as they are
  std::int64_t expert_bytes;  // to the next
};

/// A of gate and up.
struct LoraInput {
  LoraWork work;
  RowsView rows;         // on the card, of work.top_k slots each
  const float* weights;  // [slots] to multiply by; null: none
};
cudaError_t project_input(const LoraInput& input, cudaStream_t stream);

/// A of down.
struct LoraMid {
  LoraWork work;
  Planes mid;
  int channels;  // of mid
};
cudaError_t project_mid(const LoraMid& mid, cudaStream_t stream);

/// B of gate and up, or of down. Rows of nobody get -0, which changes no sum.
struct LoraAdd {
  LoraWork work;
  StripsLayout strips;
  int rows;  // of the matrices
  bool down;
};
cudaError_t add_low(const LoraAdd& add, cudaStream_t stream);

}  // namespace sluice::cuda
