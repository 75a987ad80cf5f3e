// SPDX-License-Identifier: Apache-2.0
// From hidden states to ids and weights on the card, with the processor's bits: the router's linear layer is
// summed in the order of `dot` (engine/router.h), scores are the functions of routing/scores.h, and sums of
// scores run in the processor's order. Plain pointers into the card's memory; every function starts a kernel
// and returns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "sluice/routing.h"
#include "sluice/tensor.h"

namespace sluice::cuda {

/// The largest router that a warp routes a token of.
inline constexpr int kMostRoutedExperts = 1024, kMostTopK = 32;

/// sluice::top_k, for routers up to that size.
struct Route {
  RouterSpec spec;
  int tokens;
  const float* logits;            // [tokens, experts]
  const float* selection_bias;    // [experts] or null, as the spec says
  const float* expert_scale;      // the same
  const std::int32_t* table;      // [vocabulary, top_k] where routing by token id
  std::int64_t vocabulary;        //
  const std::int64_t* token_ids;  // [tokens]; those outside the table get ids of -1
  std::int32_t* ids;              // [tokens, top_k]
  float* weights;                 // [tokens, top_k]
};
cudaError_t route(const Route& route, cudaStream_t stream);

/// out = rows times the transpose of `weight`, + bias.
struct Logits {
  RowsView rows;
  int outputs;
  const float* weight;  // [outputs, width]
  const float* bias;    // [outputs] or null
  float* out;           // [rows, outputs]
};
cudaError_t logits(const Logits& logits, cudaStream_t stream);

/// Every token's one shared expert: ids of 0, weights the sigmoids of what is there, or 1.
struct SharedLists {
  int tokens;
  bool gated;
  std::int32_t* ids;  // [tokens]
  float* weights;     // [tokens]
};
cudaError_t shared_lists(const SharedLists& lists, cudaStream_t stream);

/// The experts of rows that are with theirs; -1 for rows that are no expert's.
struct RowIds {
  const std::int32_t* offsets;  // [local_experts + 1], or null
  const std::int32_t* counts;   // [local_experts] otherwise
  int max_tokens, local_experts;
  int first, count;   // rows
  std::int32_t* ids;  // [count]
};
cudaError_t row_ids(const RowIds& rows, cudaStream_t stream);

}  // namespace sluice::cuda
