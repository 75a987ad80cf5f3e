// SPDX-License-Identifier: Apache-2.0
// Calls whose views contradict the layer. Each is refused before anything is written.
#include <gtest/gtest.h>

#include <functional>

#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using small::expect_error;
using testing::Numbers;

class CallTest : public ::testing::Test {
 protected:
  /// Expects the call, changed by `change`, to be refused, with all outputs as they were.
  void refused(std::string_view code, const std::function<void(LayerCall&)>& change,
               const Layer& layer) const {
    small::Outputs out(spec_, 4);
    std::vector<std::byte> workspace(layer.workspace_bytes(4));
    LayerCall call = small::call_of(drawn_, out, workspace);
    call.token_ids = {};
    change(call);
    expect_error(code, [&] { layer.run(call); });
    EXPECT_EQ(out, small::Outputs(spec_, 4));
  }
  void refused(std::string_view code, const std::function<void(LayerCall&)>& change) const {
    refused(code, change, layer_);
  }

  const LayerSpec spec_ = small::spec();
  const LayerWeights weights_ = draw_weights(spec_, Numbers::noisy, 1);
  const testing::DrawnCall drawn_ = draw_call(spec_, Numbers::noisy, {.tokens = 4}, 2);
  const Layer layer_ = Layer(small::plan_for(spec_), weights_);
};

TEST_F(CallTest, Hidden) {
  refused("bad_hidden", [](LayerCall& call) { call.hidden.width = 95; });
  refused("bad_hidden", [](LayerCall& call) { call.hidden.rows = -1; });
  refused("bad_hidden", [](LayerCall& call) { call.hidden.dtype = DType::f64; });
  refused("bad_hidden", [](LayerCall& call) { call.hidden.data = nullptr; });
  refused("bad_hidden", [](LayerCall& call) { call.hidden.row_stride = 2 * 96 - 1; });
  refused("bad_hidden", [](LayerCall& call) { call.hidden.row_stride = -2 * 96; });
}

TEST_F(CallTest, Routing) {
  const Routing good = drawn_.routing(3);
  refused("bad_routing", [&](LayerCall& call) { call.routing = {good.ids, nullptr, 4, 3}; });
  refused("bad_routing", [&](LayerCall& call) { call.routing = {nullptr, good.weights, 4, 3}; });
  refused("bad_routing", [&](LayerCall& call) { call.routing = {good.ids, good.weights, 3, 3}; });
  refused("bad_routing", [&](LayerCall& call) { call.routing = {good.ids, good.weights, 4, 2}; });
}

TEST_F(CallTest, Logits) {
  const std::vector<float> logits(4 * 8);
  refused("bad_routing", [&](LayerCall& call) { call.router_logits = std::span(logits).first(31); });
  refused("bad_routing", [&](LayerCall& call) {
    call.router_logits = logits;
    call.routing = drawn_.routing(3);
  });
}

TEST_F(CallTest, ALayerWithoutRouter) {
  LayerWeights weights = weights_;
  weights.router = {};
  const Layer layer(small::plan_for(spec_), weights);
  const std::vector<float> logits(4 * 8);
  refused(
      "no_router", [](LayerCall&) {}, layer);
  refused(
      "no_router", [&](LayerCall& call) { call.router_logits = logits; }, layer);  // no selection bias either

  small::Outputs out(spec_, 4);
  std::vector<std::byte> workspace(layer.workspace_bytes(4));
  LayerCall call = small::call_of(drawn_, out, workspace);
  call.routing = drawn_.routing(3);
  EXPECT_NO_THROW(layer.run(call));
}

TEST_F(CallTest, TokenIds) {
  LayerSpec spec = spec_;
  spec.router.by_token_id = true;
  spec.router.selection_bias = false;
  const LayerWeights weights = draw_weights(spec, Numbers::noisy, 1);
  const Layer layer(small::plan_for(spec), weights);
  const std::vector<std::int64_t> beyond{0, 1, 2, testing::kDrawnVocabulary}, negative{0, 1, -1, 3};
  refused(
      "bad_token_ids", [](LayerCall&) {}, layer);
  refused(
      "bad_token_ids", [&](LayerCall& call) { call.token_ids = std::span(beyond).first(3); }, layer);
  refused(
      "bad_token_ids", [&](LayerCall& call) { call.token_ids = beyond; }, layer);
  refused(
      "bad_token_ids", [&](LayerCall& call) { call.token_ids = negative; }, layer);

  small::Outputs out(spec, 4);
  std::vector<std::byte> workspace(layer.workspace_bytes(4));
  layer.run(small::call_of(drawn_, out, workspace));
  for (std::size_t token = 0; token < 4; ++token)
    for (std::size_t k = 0; k < 3; ++k)
      EXPECT_EQ(out.topk_ids[3 * token + k],
                weights.router.table[static_cast<std::size_t>(drawn_.token_ids[token]) * 3 + k]);
}

/// Ids are values: nothing about them throws, whatever they are.
TEST_F(CallTest, IdsAreNeverRefused) {
  const std::vector<std::int32_t> ids{-1, -1, -1, 8, 1000000, -2147483647 - 1, 3, 3, 3, 0, 2147483647, 7};
  const std::vector<float> weights(12, 0.5f);
  small::Outputs out(spec_, 4);
  std::vector<std::byte> workspace(layer_.workspace_bytes(4));
  LayerCall call = small::call_of(drawn_, out, workspace);
  call.routing = {ids.data(), weights.data(), 4, 3};
  layer_.run(call);
  for (std::size_t i = 0; i < 2 * 96; ++i) EXPECT_EQ(out.experts_out[i], 0) << i;
  EXPECT_EQ(out.topk_ids, ids) << "as used means as given";
}

}  // namespace
}  // namespace sluice
