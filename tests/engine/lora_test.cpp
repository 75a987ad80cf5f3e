// SPDX-License-Identifier: Apache-2.0
// Adapters of a call: what is refused, what a plan must have asked for, and numbers worked out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "testing/closeness.h"
#include "testing/drawn_lora.h"
#include "testing/rounding.h"
#include "testing/usable_backends.h"
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using small::expect_error;
using testing::Numbers;

LayerSpec spec_with(int rank) {
  LayerSpec spec = small::spec();
  spec.routed.lora_rank = spec.shared->experts.lora_rank = rank;
  return spec;
}

class LoraCallTest : public ::testing::Test {
 protected:
  void refused(const char* says, const std::function<void(testing::DrawnLora&)>& spoil) const {
    testing::DrawnLora lora = draw_lora(spec_, Numbers::noisy, 4, 3);
    spoil(lora);
    small::Outputs out(spec_, 4);
    const std::vector<const LoraAdapter*> adapters = lora.pointers();
    std::vector<std::byte> workspace(layer_.workspace_bytes(4));
    LayerCall call = small::call_of(drawn_, out, workspace);
    call.adapters = adapters;
    call.adapter_ids = lora.ids;
    try {
      layer_.run(call);
      ADD_FAILURE() << "accepted: " << says;
    } catch (const Error& error) {
      EXPECT_EQ(error.info().code, "bad_adapter");
      EXPECT_NE(error.info().what.find(says), std::string::npos) << error.what();
    }
    EXPECT_EQ(out, small::Outputs(spec_, 4)) << "something was written";
  }

  const LayerSpec spec_ = spec_with(4);
  const LayerWeights weights_ = draw_weights(spec_, Numbers::noisy, 1);
  const testing::DrawnCall drawn_ = draw_call(spec_, Numbers::noisy, {.tokens = 4}, 2);
  const Layer layer_ = Layer(small::plan_for(spec_), weights_);
};

TEST_F(LoraCallTest, Refused) {
  using Lora = testing::DrawnLora;
  refused("adapter_ids: 3 for 4 tokens", [](Lora& lora) { lora.ids.pop_back(); });
  refused("adapter_ids: 0 for 4 tokens", [](Lora& lora) { lora.ids.clear(); });
  refused("adapter_ids: 2 at token 1; 2 adapters", [](Lora& lora) { lora.ids[1] = 2; });
  refused("adapter_ids: -2 at token 3", [](Lora& lora) { lora.ids[3] = -2; });
  refused("7 routed experts, the layer has 8", [](Lora& lora) { lora.adapters[0].routed.pop_back(); });
  refused("adapter 1, routed expert 2, gate: rank 5, the layer's lora_rank is 4", [](Lora& lora) {
    lora.adapters[1].routed[2].gate.a.rows = lora.adapters[1].routed[2].gate.b.cols = 5;
  });
  refused("shared expert 0, up: rank 0", [](Lora& lora) { lora.adapters[0].shared[0].up.a.rows = 0; });
  refused("up: A has 95 columns, the weight has 96",
          [](Lora& lora) { lora.adapters[0].routed[0].up.a.cols = 95; });
  refused("down: B is [95, 4], expected [96, 4]",
          [](Lora& lora) { lora.adapters[0].routed[0].down.b.rows = 95; });
  refused("down: A without B", [](Lora& lora) { lora.adapters[0].routed[0].down.b.data = nullptr; });
  refused("A is I32 and B is ", [](Lora& lora) { lora.adapters[0].routed[0].down.a.dtype = DType::i32; });
  refused("scale is nan", [](Lora& lora) { lora.adapters[0].routed[0].down.scale = std::nanf(""); });
}

TEST(LoraLayer, ACallNeedsALayerWithARank) {
  const LayerSpec with = spec_with(4);
  const testing::DrawnLora lora = draw_lora(with, Numbers::noisy, 1, 3);
  const std::vector<const LoraAdapter*> adapters = lora.pointers();
  const LayerSpec without = small::spec();
  const Layer layer(small::plan_for(without), draw_weights(without, Numbers::noisy, 1));
  const testing::DrawnCall drawn = draw_call(without, Numbers::noisy, {.tokens = 1}, 2);
  small::Outputs out(without, 1);
  std::vector<std::byte> workspace(layer.workspace_bytes(1));
  LayerCall call = small::call_of(drawn, out, workspace);
  call.adapters = adapters;
  call.adapter_ids = lora.ids;
  expect_error("bad_adapter", [&] { layer.run(call); });
}

TEST(LoraLayer, TheWorkspaceGrowsWithTheRankAlone) {
  for (const Backend* backend : testing::usable_backends(Features::set<feature::Lora>())) {
    if (testing::rounding_of(backend->name) != testing::Rounding::none &&
        small::plan_for(spec_with(0), std::string(backend->name)).chosen.empty())
      continue;  // the shared expert's format
    const auto bytes = [&](int rank) {
      const LayerSpec spec = spec_with(rank);
      return Layer(small::plan_for(spec, std::string(backend->name)), draw_weights(spec, Numbers::noisy, 1))
          .workspace_bytes(8);
    };
    EXPECT_GT(bytes(64), bytes(0)) << backend->name;
  }
}

/// One expert of one wide, gate weight 1, up 1, down 1, x = 5, limit 7; the adapter adds 4 to the gate and -2
/// to up, and half of mid to down. gate 9 is clamped to 7: silu(7) (5 - 2) 1.5. A delta behind the clamp
/// would say silu(9), one on the digits or codes anything else.
TEST(LoraLayer, WorkedOutByHand) {
  const Format bf16 = Formats::of<format::Bf16>();  // which cards take as well
  LayerSpec spec{.routed = {.hidden = 1,
                            .intermediate = 1,
                            .experts = 1,
                            .local_experts = 1,
                            .top_k = 1,
                            .formats = {bf16, bf16, bf16},
                            .activation = Activations::of<activation::Silu>(),
                            .params = {.limit = 7},
                            .lora_rank = 2},
                 .router = {.score = *Score::parse("softmax"), .experts = 1, .top_k = 1}};
  const std::uint16_t one = 0x3F80;
  const float x = 5, weight = 1;
  const WeightMatrix matrix{.format = bf16,
                            .rows = 1,
                            .cols = 1,
                            .codes = reinterpret_cast<const std::byte*>(&one),
                            .row_stride = 2,
                            .col_stride = 2};
  LayerWeights weights;
  weights.routed.push_back({.gate = matrix, .up = matrix, .down = matrix});
  const float a[] = {1, 2}, gate_b[] = {0.4f, 0.2f}, up_b[] = {0, -0.2f}, down_b[] = {0.5f, 0};
  const auto delta = [&](const float* b, float scale) {
    return LoraDelta{.a = {reinterpret_cast<const std::byte*>(a), DType::f32, 2, 1, 4, 4},
                     .b = {reinterpret_cast<const std::byte*>(b), DType::f32, 1, 2, 8, 4},
                     .scale = scale};
  };
  LoraAdapter adapter;
  adapter.routed.push_back({.gate = delta(gate_b, 1), .up = delta(up_b, 1), .down = delta(down_b, 1)});
  const LoraAdapter* const adapters[] = {&adapter};
  const std::int32_t expert = 0, id = 0, none = -1;
  for (const Backend* backend : testing::usable_backends(Features::set<feature::Lora>())) {
    if (testing::unit_of(backend->name) > testing::kFloat32Unit ||
        testing::rounding_of(backend->name) != testing::Rounding::none)
      continue;  // rounds the intermediate
    const Layer layer(small::plan_for(spec, std::string(backend->name)), weights);
    std::vector<std::byte> workspace(layer.workspace_bytes(1));
    float y = 0;
    LayerCall call{.hidden = {reinterpret_cast<const std::byte*>(&x), DType::f32, 1, 1, 4},
                   .routing = {&expert, &weight, 1, 1},
                   .adapters = adapters,
                   .adapter_ids = {&id, 1},
                   .experts_out = &y,
                   .workspace = workspace};
    layer.run(call);
    const auto silu = [](double gate) { return gate / (1 + std::exp(-gate)); };
    EXPECT_NEAR(y, silu(7) * (5 - 2) * 1.5, 1e-4) << backend->name;
    call.adapter_ids = {&none, 1};
    layer.run(call);
    EXPECT_NEAR(y, silu(5) * 5, 1e-4) << backend->name;
  }
}

}  // namespace
}  // namespace sluice
