// SPDX-License-Identifier: Apache-2.0
// What a spec asks for: each feature by itself, and nothing for a plain layer.
#include <gtest/gtest.h>

#include <functional>

#include "tests/oracle/invented.h"

namespace sluice {
namespace {

TEST(Needs, APlainLayerNeedsNothing) {
  EXPECT_TRUE(needs(invented::plain_layer()).empty()) << needs(invented::plain_layer()).str();
}

TEST(Needs, GptOss) {
  EXPECT_EQ(needs(invented::layer()).str(), "gate_up_bias, down_bias, limit, slope, shift");
}

TEST(Needs, EachFeatureByItself) {
  const struct {
    Feature feature;
    std::function<void(LayerSpec&)> ask;
  } cases[] = {
      {Features::of<feature::GateUpBias>(), [](LayerSpec& spec) { spec.routed.gate_up_bias = true; }},
      {Features::of<feature::DownBias>(), [](LayerSpec& spec) { spec.routed.down_bias = true; }},
      {Features::of<feature::Limit>(), [](LayerSpec& spec) { spec.routed.params.limit = 1e30f; }},
      {Features::of<feature::Slope>(), [](LayerSpec& spec) { spec.routed.params.slope = 1.5f; }},
      {Features::of<feature::Shift>(), [](LayerSpec& spec) { spec.routed.params.shift = 1; }},
      {Features::of<feature::ExpertMap>(), [](LayerSpec& spec) { spec.routed.local_experts = 8; }},
      {Features::of<feature::WeightOnInput>(), [](LayerSpec& spec) { spec.routed.weight_on_input = true; }},
      {Features::of<feature::SharedExpert>(), [](LayerSpec& spec) { spec = invented::with_shared(spec); }},
      {Features::of<feature::MixedFormats>(),
       [](LayerSpec& spec) { spec.routed.formats.down = Formats::of<format::Mxfp4>(); }},
      {Features::of<feature::Lora>(), [](LayerSpec& spec) { spec.routed.lora_rank = 8; }},
  };
  ASSERT_EQ(std::size(cases), Features::kNames.size()) << "a feature without a case here";
  for (const auto& each : cases) {
    LayerSpec spec = invented::plain_layer();
    each.ask(spec);
    EXPECT_EQ(needs(spec), FeatureSet().add(each.feature)) << each.feature.str() << ": " << needs(spec).str();
  }
}

TEST(Needs, MixedFormatsLookAtTheGateToo) {
  ExpertsSpec spec = invented::plain_layer().routed;
  spec.formats.gate = Formats::of<format::Mxfp4>();
  EXPECT_TRUE(needs(spec).has(Features::of<feature::MixedFormats>()));
  spec.formats.gate.reset();
  EXPECT_FALSE(needs(spec).has(Features::of<feature::MixedFormats>())) << "no gate, nothing to differ";
}

TEST(Needs, ASharedExpertBringsItsOwn) {
  LayerSpec spec = invented::with_shared(invented::plain_layer());
  spec.shared->experts.params.limit = 10;
  EXPECT_EQ(needs(spec).str(), "limit, shared_expert");
  EXPECT_TRUE(needs(spec.routed).empty());
}

}  // namespace
}  // namespace sluice
