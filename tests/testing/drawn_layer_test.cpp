// SPDX-License-Identifier: Apache-2.0
// What drawn layers promise to the tests that use them.
#include "testing/drawn_layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "activation/activation.h"
#include "format/formats.h"
#include "testing/reference_run.h"

namespace sluice::testing {
namespace {

LayerSpec spec_of(Format format, Activation activation, ActivationParams params) {
  MatrixFormats formats{.gate = format, .up = format, .down = format};
  if (!is_gated(activation)) formats.gate.reset();
  return {.routed = {.hidden = 160,
                     .intermediate = 96,
                     .experts = 5,
                     .local_experts = 5,
                     .top_k = 2,
                     .formats = formats,
                     .activation = activation,
                     .params = params,
                     .gate_up_bias = true,
                     .down_bias = true},
          .router = {.score = *Score::parse("sigmoid"), .experts = 5, .top_k = 2}};
}

ReferenceResult reference(const LayerSpec& spec, Numbers numbers) {
  const LayerWeights weights = draw_weights(spec, numbers, 3);
  const DrawnCall call = draw_call(spec, numbers, {.tokens = 16}, 4);
  return reference_run({.spec = spec, .weights = weights, .hidden = call.hidden, .routing = call.routing(2)});
}

/// Sums of the results' own magnitude stay below 2^24 halves, so float32 holds every partial sum.
TEST(DrawnLayer, ExactNumbersAreExactInFloat32) {
  for (std::size_t f = 0; f < Format::all().size(); ++f)
    for (std::size_t a = 0; a < Activation::all().size(); ++a) {
      const Format format(static_cast<std::uint8_t>(f));
      if (is_ggml_block(format)) continue;  // their codes are not drawn one by one
      const Activation activation(static_cast<std::uint8_t>(a));
      const ReferenceResult result = reference(spec_of(format, activation, {}), Numbers::exact);
      double largest = 0;
      for (const double value : result.experts_out) {
        EXPECT_EQ(value * 2, std::round(value * 2)) << format.str() << " " << activation.str();
        largest = std::max(largest, std::abs(value));
      }
      EXPECT_GT(largest, 100) << format.str() << " " << activation.str() << ": nothing much is computed";
      EXPECT_LT(largest, 0x1p22) << format.str() << " " << activation.str();
    }
}

TEST(DrawnLayer, ExactWeightsAreSmallIntegersInEveryFormat) {
  for (std::size_t f = 0; f < Format::all().size(); ++f) {
    if (is_ggml_block(Format(static_cast<std::uint8_t>(f)))) continue;
    const LayerSpec spec =
        spec_of(Format(static_cast<std::uint8_t>(f)), Activations::of<activation::Silu>(), {});
    const LayerWeights weights = draw_weights(spec, Numbers::exact, 3);
    std::set<double> seen;
    std::vector<double> row(160);
    for (int r = 0; r < 96; ++r) {
      decode_row(weights.routed[0].up, r, row.data());
      seen.insert(row.begin(), row.end());
    }
    for (const double value : seen) EXPECT_TRUE(value == std::round(value) && std::abs(value) <= 4) << value;
    EXPECT_GE(seen.size(), 3u);
  }
}

TEST(DrawnLayer, NoisyLayersExceedTheirLimits) {
  for (const Activation activation :
       {Activations::of<activation::Silu>(), Activations::of<activation::SiluThenClamp>()})
    for (const float limit : {4.0f, 7.0f, 10.0f}) {
      const ReferenceResult result =
          reference(spec_of(Formats::of<format::Mxfp4>(), activation, {.limit = limit}), Numbers::noisy);
      EXPECT_GE(result.gate_over_limit, 0.10);
      EXPECT_GE(result.up_over_limit, 0.10);
      EXPECT_GE(result.clamp_effect, 0.10);
    }
}

TEST(DrawnLayer, RoutingIsDistinctAndInRange) {
  const LayerSpec spec = spec_of(Formats::of<format::Bf16>(), Activations::of<activation::Silu>(), {});
  const DrawnCall call = draw_call(spec, Numbers::noisy, {.tokens = 50}, 9);
  ASSERT_EQ(call.ids.size(), 100u);
  for (std::size_t at = 0; at < call.ids.size(); at += 2) {
    EXPECT_NE(call.ids[at], call.ids[at + 1]);
    EXPECT_TRUE(call.ids[at] >= 0 && call.ids[at] < 5);
  }
}

}  // namespace
}  // namespace sluice::testing
