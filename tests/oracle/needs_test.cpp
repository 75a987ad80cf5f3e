// SPDX-License-Identifier: Apache-2.0
// What a spec asks for: each feature by itself, and nothing for a plain layer.
#include <gtest/gtest.h>

#include <functional>

#include "tests/oracle/invented.h"

namespace sluice {
namespace {

MatrixFormats integers(Grouping grouping) {
  const Format int4 = Formats::of<format::Int4>();
  return {.gate = int4,
          .up = int4,
          .down = int4,
          .gate_grouping = grouping,
          .up_grouping = grouping,
          .down_grouping = grouping};
}

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
      {Features::of<feature::Saturation>(), [](LayerSpec& spec) { spec.routed.params.situ_beta = 4; }},
      {Features::of<feature::ExpertMap>(), [](LayerSpec& spec) { spec.routed.local_experts = 8; }},
      {Features::of<feature::WeightOnInput>(), [](LayerSpec& spec) { spec.routed.weight_on_input = true; }},
      {Features::of<feature::SharedExpert>(), [](LayerSpec& spec) { spec = invented::with_shared(spec); }},
      {Features::of<feature::MixedFormats>(),
       [](LayerSpec& spec) { spec.routed.formats.down = Formats::of<format::Mxfp4>(); }},
      {Features::of<feature::MixedGateUp>(),
       [](LayerSpec& spec) { spec.routed.formats.gate = Formats::of<format::Mxfp4>(); }},
      {Features::of<feature::MixedExperts>(),
       [](LayerSpec& spec) { spec.routed.others = {{.expert = 1, .formats = integers({.columns = 32})}}; }},
      {Features::of<feature::ZeroPoints>(),
       [](LayerSpec& spec) { spec.routed.formats = integers({.columns = 32, .zero_points = true}); }},
      {Features::of<feature::ActOrder>(),
       [](LayerSpec& spec) { spec.routed.formats = integers({.columns = 32, .act_order = true}); }},
      {Features::of<feature::Lora>(), [](LayerSpec& spec) { spec.routed.lora_rank = 8; }},
      {Features::of<feature::Latent>(), [](LayerSpec& spec) { spec.latent = LatentSpec{.hidden = 512}; }},
  };
  ASSERT_EQ(std::size(cases), Features::kNames.size()) << "a feature without a case here";
  for (const auto& each : cases) {
    LayerSpec spec = invented::plain_layer();
    each.ask(spec);
    EXPECT_EQ(needs(spec), FeatureSet().add(each.feature)) << each.feature.str() << ": " << needs(spec).str();
  }
}

TEST(Needs, MixedGateUpNeedsAGate) {
  ExpertsSpec spec = invented::plain_layer().routed;
  spec.formats.gate = Formats::of<format::Mxfp4>();
  EXPECT_EQ(needs(spec).str(), "mixed_gate_up");
  spec.formats.down = Formats::of<format::Mxfp4>();
  EXPECT_EQ(needs(spec).str(), "mixed_formats, mixed_gate_up");
  spec.formats.gate.reset();
  EXPECT_EQ(needs(spec).str(), "mixed_formats") << "no gate, nothing to differ";
}

TEST(Needs, GroupingsThatDifferAreMixed) {
  ExpertsSpec spec = invented::plain_layer().routed;
  spec.formats = integers({.columns = 32});
  EXPECT_TRUE(needs(spec).empty()) << needs(spec).str();
  spec.formats.down_grouping.columns = 64;
  EXPECT_EQ(needs(spec).str(), "mixed_formats");
  spec.formats = integers({.columns = 32});
  spec.formats.gate_grouping.columns = 0;
  EXPECT_EQ(needs(spec).str(), "mixed_gate_up");
}

TEST(Needs, ASharedExpertBringsItsOwn) {
  LayerSpec spec = invented::with_shared(invented::plain_layer());
  spec.shared->experts.params.limit = 10;
  EXPECT_EQ(needs(spec).str(), "limit, shared_expert");
  EXPECT_TRUE(needs(spec.routed).empty());
}

}  // namespace
}  // namespace sluice
