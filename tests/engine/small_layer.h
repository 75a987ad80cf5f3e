// SPDX-License-Identifier: Apache-2.0
// A layer small enough to run in a millisecond that has everything: biases, a limit, a router with biases, a
// shared expert behind a gate.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "activation/activation.h"
#include "core/devices.h"
#include "experts/backend.h"
#include "format/formats.h"
#include "sluice/layer.h"
#include "testing/device_for.h"
#include "testing/drawn_layer.h"

namespace sluice::small {

inline LayerSpec spec() {
  const Format mxfp4 = Formats::of<format::Mxfp4>(), bf16 = Formats::of<format::Bf16>();
  LayerSpec layer{.routed = {.hidden = 96,
                             .intermediate = 64,
                             .experts = 8,
                             .local_experts = 8,
                             .top_k = 3,
                             .formats = {mxfp4, mxfp4, mxfp4},
                             .activation = Activations::of<activation::Silu>(),
                             .params = {.limit = 7, .slope = 1.702f, .shift = 1},
                             .gate_up_bias = true,
                             .down_bias = true},
                  .router = {.score = *Score::parse("sigmoid"),
                             .experts = 8,
                             .top_k = 3,
                             .bias = true,
                             .selection_bias = true,
                             .renormalise = true,
                             .scale = 1.5f}};
  ExpertsSpec shared = layer.routed;
  shared.experts = shared.local_experts = shared.top_k = 1;
  shared.intermediate = 32;
  shared.formats = {bf16, bf16, bf16};
  layer.shared = SharedSpec{.experts = shared, .sigmoid_gate = true};
  return layer;
}

/// The same with latent experts: rows of 160, of which the routed experts see 96.
inline LayerSpec latent_spec() {
  LayerSpec layer = spec();
  layer.latent = LatentSpec{.hidden = 160, .norm_epsilon = 1e-5f};
  layer.shared->experts.hidden = 160;
  return layer;
}

/// A plan for this machine that takes `backend`, or the best where that is empty.
inline Plan plan_for(const LayerSpec& layer, const std::string& backend = "reference") {
  return choose(
      {.layer = layer, .device = testing::device_for(backend), .tokens = {1, 4}, .by_name = backend});
}

/// Buffers for the results of a call.
struct Outputs {
  Outputs(const LayerSpec& layer, int tokens)
      : experts_out(static_cast<std::size_t>(tokens * layer.hidden()), -99.0f),
        block_out(experts_out.size(), -99.0f),
        topk_ids(static_cast<std::size_t>(tokens * layer.routed.top_k), -99),
        topk_weights(topk_ids.size(), -99.0f) {}

  std::vector<float> experts_out, block_out;
  std::vector<std::int32_t> topk_ids;
  std::vector<float> topk_weights;

  bool operator==(const Outputs&) const = default;
};

inline LayerCall call_of(const testing::DrawnCall& drawn, Outputs& out, std::span<std::byte> workspace) {
  return {.hidden = drawn.hidden,
          .token_ids = drawn.token_ids,
          .experts_out = out.experts_out.data(),
          .block_out = out.block_out.data(),
          .topk_ids = out.topk_ids.data(),
          .topk_weights = out.topk_weights.data(),
          .workspace = workspace};
}

/// Runs `drawn` through the layer's own router, `tokens_at_once` tokens at a time.
inline Outputs run(const Layer& layer, const testing::DrawnCall& drawn, int tokens_at_once) {
  Outputs out(layer.plan().request.layer, drawn.hidden.rows);
  std::vector<std::byte> workspace(layer.workspace_bytes(tokens_at_once));
  layer.run(call_of(drawn, out, workspace));
  return out;
}

inline Outputs run(const Layer& layer, const testing::DrawnCall& drawn) {
  return run(layer, drawn, drawn.hidden.rows);
}

/// Expects `body` to throw an Error of that code.
template <class Body>
void expect_error(std::string_view code, Body&& body) {
  try {
    body();
    ADD_FAILURE() << "nothing thrown, expected " << code;
  } catch (const Error& error) {
    EXPECT_EQ(error.info().code, code) << error.what();
    EXPECT_FALSE(error.info().what.empty());
    EXPECT_FALSE(error.info().todo.empty()) << error.what();
  }
}

}  // namespace sluice::small
