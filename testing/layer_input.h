// SPDX-License-Identifier: Apache-2.0
// What `sluice run` and `sluice check` read from a safetensors file: the input of a layer, and its expected
// outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/checkpoint.h"
#include "sluice/routing.h"
#include "sluice/spec.h"

namespace sluice::testing {

/// The most tokens of one file: activations of 1 M tokens are some gigabytes.
inline constexpr int kMostTokens = 1 << 20;

/// Input of one layer, copied and converted. Movable: the views stay valid.
struct LayerInput {
  RowsView hidden = {};  // of `hidden_bytes`
  std::vector<std::byte> hidden_bytes = {};
  std::vector<std::int64_t> token_ids = {};
  std::vector<float> router_logits = {};       // [tokens, experts]
  std::vector<std::int32_t> topk_ids = {};     // [tokens, top_k]
  std::vector<float> topk_weights = {};        // [tokens, top_k]
  std::vector<std::int32_t> adapter_ids = {};  // [tokens], -1 for none; empty: the file names none

  /// The routing the file gave, or an empty one.
  Routing routing() const;
  /// "topk_ids", "router_logits" or "router": who decides which experts a token goes to.
  std::string routed_by() const;
};

/// Reads `hidden` [tokens, hidden] (bf16, f16 or f32), and where present `input_ids` [tokens] (i64 or i32),
/// `router_logits` [tokens, experts] (f32), `topk_ids` [tokens, top_k] (i32 or i64) with `topk_weights`
/// (f32), `adapter_ids` [tokens] (i32 or i64). A file without `hidden` may hold `N.hidden` of layer N
/// instead, with `N.input_ids`: then it is a file of expected outputs, and what else it has of the layer is a
/// result and not an input. Throws corrupt_file for a missing or unknown tensor, a wrong type or shape, and
/// an expert that the layer has not.
LayerInput read_layer_input(const TensorFile& file, int layer, const LayerSpec& spec);

/// Throws corrupt_file unless a layer that routes by token id got ids, all of them within its table.
void check_token_ids(const TensorFile& file, int layer, const LayerSpec& spec, const LayerWeights& weights,
                     const LayerInput& input);

/// Expected outputs of one layer, empty where the file has none.
struct ExpectedOutputs {
  std::vector<float> experts_out = {};      // [tokens, hidden]
  std::vector<float> block_out = {};        // [tokens, hidden]
  std::vector<float> topk_weights = {};     // [tokens, top_k]
  std::vector<std::int32_t> topk_ids = {};  // [tokens, top_k]
};

/// Reads "N.experts_out" and the others of layer N, or the names without number when the file has `hidden`. A
/// file that has neither output, or no token, is corrupt: nothing could be compared.
ExpectedOutputs read_expected(const TensorFile& file, int layer, const LayerSpec& spec, int tokens);

/// The layers for which `file` has "N.hidden", ascending.
std::vector<int> expected_layers(const TensorFile& file);

}  // namespace sluice::testing
