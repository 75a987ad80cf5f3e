// SPDX-License-Identifier: Apache-2.0
// Calling top_k without ceremony.
#pragma once

#include <random>
#include <vector>

#include "sluice/routing.h"

namespace sluice::testing_routing {

inline Score score(std::string_view name) { return Score::parse(name).value(); }

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

struct Call {
  std::vector<float> logits;
  std::vector<float> selection_bias = {};
  std::vector<float> expert_scale = {};
  std::vector<std::int32_t> table = {};
  std::vector<std::int64_t> token_ids = {};
};

/// Outputs start as rubbish, and scratch is misaligned by a byte and exactly as large as asked for.
inline Routed route(const RouterSpec& spec, const Call& call) {
  const std::size_t tokens = call.logits.size() / static_cast<std::size_t>(spec.experts);
  const std::size_t slots = tokens * static_cast<std::size_t>(spec.top_k);
  Routed out{std::vector<std::int32_t>(slots, 12345), std::vector<float>(slots, 6789.0f)};
  const std::size_t bytes = top_k_scratch_bytes(spec);
  std::vector<std::byte> scratch(bytes + 1);
  top_k(spec,
        {.logits = call.logits,
         .tokens = static_cast<int>(tokens),
         .selection_bias = call.selection_bias,
         .expert_scale = call.expert_scale,
         .table = call.table,
         .token_ids = call.token_ids},
        out.ids, out.weights, std::span(scratch).subspan(1, bytes));
  return out;
}

/// What a router of some size does with its scores.
inline void draw_rules(std::mt19937& draw, RouterSpec& spec) {
  spec.group_score = draw() % 2 == 0 ? GroupScore::best : GroupScore::two_best;
  spec.selection_bias = draw() % 2 == 0;
  spec.renormalise = draw() % 2 == 0;
  spec.scale = draw() % 2 == 0 ? 1.0f : 2.5f;
  spec.expert_scale = draw() % 4 == 0;
}

}  // namespace sluice::testing_routing
