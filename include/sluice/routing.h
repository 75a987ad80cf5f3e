// SPDX-License-Identifier: Apache-2.0
// From router scores to expert ids and weights. All arithmetic is float32, as in the models' own code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/name.h"
#include "sluice/tensor.h"

namespace sluice {

/// How a logit becomes a score:
///   "softmax"           over all experts, then select (Mixtral, Qwen)
///   "softmax_selected"  select on logits, then softmax over the selected (gpt-oss)
///   "sigmoid"           of every logit, then select (DeepSeek-V3, GLM)
///   "sigmoid_selected"  select on logits, then the sigmoid of the selected (Llama-4, with weight_on_input)
///   "sqrt_softplus"     sqrt(log(1 + exp(x))) (DeepSeek-V4)
using Score = Name<struct ScoreTag>;

/// How a group of experts is ranked when groups > 1: by its best score, or by the sum of its two best
/// (DeepSeek-V3, whenever there is a selection bias).
enum class GroupScore : std::uint8_t { best, two_best };

struct RouterSpec {
  Score score;
  int experts = 0;
  int top_k = 0;
  int groups = 1;       // experts / groups experts each; 1 means no grouping
  int groups_kept = 1;  // experts of other groups cannot be selected
  GroupScore group_score = GroupScore::best;
  bool bias = false;            // the router's linear layer has one; part of the logits
  bool selection_bias = false;  // added to the score for selecting, never part of the weight
  bool renormalise = false;     // weights divided by their sum
  float scale = 1.0f;           // applied once, after renormalising
  bool expert_scale = false;    // then times a number for each expert (Gemma-4's per-expert output scale)
  bool by_token_id = false;     // ids come from a table indexed by token id; weights still from the scores
};

/// Which experts each token goes to. A view: `ids` and `weights` are [tokens, top_k], row-major. An id of -1
/// contributes nothing; ids outside [0, experts) are treated as -1 on the forward path.
struct Routing {
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  int tokens = 0;
  int top_k = 0;
};

/// Sums what experts gave into tokens: output row t is the sum, in the order of its ids, of weights[t, j]
/// times row row_of_slot[t * top_k + j] of `rows`. Rows of -1 contribute nothing; null `weights` are ones.
/// With the rows of a layer's experts, wherever each was computed, this gives the bits of the layer's own
/// experts_out. `rows` is [any, hidden] and `output` [tokens, hidden], both dense. Allocates nothing.
void combine(const Routing& routing, std::span<const std::int32_t> row_of_slot, const float* rows, int hidden,
             float* output);

/// What top_k reads. `logits` is [tokens, experts]. `selection_bias` and `expert_scale` are [experts] when
/// the spec has them, otherwise empty. `table` is [vocabulary, top_k] and `token_ids` [tokens] when routing
/// by token id, otherwise empty.
struct RouterInput {
  std::span<const float> logits;
  int tokens = 0;
  std::span<const float> selection_bias = {};
  std::span<const float> expert_scale = {};
  std::span<const std::int32_t> table = {};
  std::span<const std::int64_t> token_ids = {};
};

/// Bytes of scratch that top_k wants for one token, whatever the number of tokens.
std::size_t top_k_scratch_bytes(const RouterSpec& spec);

/// Selects. Writes `ids` and `weights`, [tokens, top_k] each, selected experts in order of falling selection
/// score; among equal scores the lowest id comes first. A NaN score never selects and never enters a sum;
/// when fewer than top_k experts are selectable the remaining ids are -1 with weight 0. Allocates nothing.
/// Throws invalid_argument when a size does not fit or a token id is outside the table.
void top_k(const RouterSpec& spec, const RouterInput& input, std::span<std::int32_t> ids,
           std::span<float> weights, std::span<std::byte> scratch);

}  // namespace sluice
