// SPDX-License-Identifier: Apache-2.0
// The gate itself: honest recomputations pass, and every wrong output that has been thought of fails. A
// comparison that nothing wrong has failed is no comparison.
#include "testing/closeness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "activation/activation.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/scales.h"
#include "testing/drawn_layer.h"
#include "testing/reference_run.h"

namespace sluice::testing {
namespace {

constexpr int kTokens = 12;

LayerSpec gpt_oss_like(int hidden = 288) {
  const Format mxfp4 = Formats::of<format::Mxfp4>();
  return {.routed = {.hidden = hidden,
                     .intermediate = 192,
                     .experts = 6,
                     .local_experts = 6,
                     .top_k = 3,
                     .formats = {mxfp4, mxfp4, mxfp4},
                     .activation = Activations::of<activation::Silu>(),
                     .params = {.limit = 7, .slope = 1.702f, .shift = 1},
                     .gate_up_bias = true,
                     .down_bias = true},
          .router = {.score = *Score::parse("softmax"), .experts = 6, .top_k = 3}};
}

float as_is(float value) { return value; }
float to_bf16(float value) { return format::bf16_to_float(format::float_to_bf16(value)); }

float float_product(const WeightMatrix& matrix, const VectorView& bias, int row,
                    const std::vector<float>& x) {
  std::vector<float> weights(x.size());
  decode_row(matrix, row, weights.data());
  float sum = 0;
  for (std::size_t k = 0; k < x.size(); ++k) sum += weights[k] * x[k];
  return sum + format::read_number(bias.dtype, bias.data + row * bias.stride);
}

/// The layer in float32, token by token, in the plainest order; `round` is applied to what enters a product.
std::vector<float> recompute(const LayerSpec& layer, const LayerWeights& weights, const DrawnCall& call,
                             const std::function<float(float)>& round) {
  const ExpertsSpec& spec = layer.routed;
  std::vector<float> out(static_cast<std::size_t>(kTokens) * static_cast<std::size_t>(spec.hidden));
  std::vector<float> x(static_cast<std::size_t>(spec.hidden)),
      mid(static_cast<std::size_t>(spec.intermediate));
  for (int token = 0; token < kTokens; ++token) {
    const std::byte* row = call.hidden.data + token * call.hidden.row_stride;
    for (std::size_t k = 0; k < x.size(); ++k) x[k] = format::read_number(DType::bf16, row + 2 * k);
    for (int slot = 0; slot < spec.top_k; ++slot) {
      const std::size_t at = static_cast<std::size_t>(token * spec.top_k + slot);
      const ExpertWeights& expert = weights.routed[static_cast<std::size_t>(call.ids[at])];
      for (int i = 0; i < spec.intermediate; ++i)
        mid[static_cast<std::size_t>(i)] =
            round(activation::Silu::apply(float_product(*expert.gate, expert.gate_bias, i, x),
                                          float_product(expert.up, expert.up_bias, i, x), spec.params));
      for (int o = 0; o < spec.hidden; ++o)
        out[static_cast<std::size_t>(token * spec.hidden + o)] +=
            call.weights[at] * float_product(expert.down, expert.down_bias, o, mid);
    }
  }
  return out;
}

class ClosenessTest : public ::testing::Test {
 protected:
  Closeness judge(const std::vector<float>& got, double unit) const {
    return closeness({.got = got,
                      .want = definition_.experts_out,
                      .magnitude = definition_.experts_magnitude,
                      .width = spec_.routed.hidden,
                      .unit = unit});
  }

  /// True when `change` applied to the honest result is rejected at both units.
  bool rejected(const std::function<void(std::vector<float>&)>& change) const {
    std::vector<float> single = recompute(spec_, weights_, call_, as_is),
                       half = recompute(spec_, weights_, call_, to_bf16);
    change(single);
    change(half);
    return !judge(single, kFloat32Unit).ok() && !judge(half, kBf16Unit).ok();
  }

  std::size_t largest() const {
    const auto& want = definition_.experts_out;
    const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
    return static_cast<std::size_t>(std::ranges::max_element(want, less) - want.begin());
  }

  const LayerSpec spec_ = gpt_oss_like();
  const LayerWeights weights_ = draw_weights(spec_, Numbers::noisy, 11);
  const DrawnCall call_ = draw_call(spec_, Numbers::noisy, {.tokens = kTokens}, 12);
  const ReferenceResult definition_ = reference_run(
      {.spec = spec_, .weights = weights_, .hidden = call_.hidden, .routing = call_.routing(3)});
};

TEST_F(ClosenessTest, AcceptsHonestRecomputations) {
  const Closeness single = judge(recompute(spec_, weights_, call_, as_is), kFloat32Unit);
  EXPECT_TRUE(single.ok()) << single.str();
  EXPECT_GT(single.rms_units, 0.01) << "a float32 path that rounds nothing";
  const Closeness half = judge(recompute(spec_, weights_, call_, to_bf16), kBf16Unit);
  EXPECT_TRUE(half.ok()) << half.str();
  EXPECT_GT(half.rms_units, 0.05);
}

/// The 11 bits of f16 and of tensor cores' TF32.
float to_eleven_bits(float value) { return format::f16_to_float(format::float_to_f16(value)); }

TEST_F(ClosenessTest, ACoarserPathIsRejectedAtAFinerUnit) {
  const Closeness eleven = judge(recompute(spec_, weights_, call_, to_eleven_bits), kFloat32Unit);
  EXPECT_FALSE(eleven.ok()) << eleven.str();
  EXPECT_FALSE(judge(recompute(spec_, weights_, call_, to_bf16), kFloat32Unit).ok());
}

TEST_F(ClosenessTest, RejectsAScaleThatIsTwoPercentOff) {
  EXPECT_TRUE(rejected([](std::vector<float>& out) {
    for (float& value : out) value *= 1.02f;
  }));
}

TEST_F(ClosenessTest, RejectsOneWrongElement) {
  const std::size_t at = largest();
  EXPECT_TRUE(rejected([at](std::vector<float>& out) { out[at] = 0; }));
  EXPECT_TRUE(rejected([at](std::vector<float>& out) { out[at] = -out[at]; }));
}

TEST_F(ClosenessTest, RejectsSwappedTokensAndShiftedColumns) {
  const std::ptrdiff_t hidden = spec_.routed.hidden;
  EXPECT_TRUE(rejected([hidden](std::vector<float>& out) {
    std::swap_ranges(out.begin(), out.begin() + hidden, out.begin() + hidden);
  }));
  EXPECT_TRUE(
      rejected([](std::vector<float>& out) { std::rotate(out.begin(), out.begin() + 1, out.end()); }));
}

TEST_F(ClosenessTest, RejectsATokenLeftOut) {
  EXPECT_TRUE(rejected([this](std::vector<float>& out) {
    std::fill_n(out.begin(), static_cast<std::ptrdiff_t>(spec_.routed.hidden), 0.0f);
  }));
}

TEST_F(ClosenessTest, RejectsADroppedClamp) {
  const std::vector<double>& without = definition_.experts_out_without_clamp;
  EXPECT_TRUE(rejected([&](std::vector<float>& out) {
    std::ranges::transform(without, out.begin(), [](double value) { return static_cast<float>(value); });
  }));
}

TEST_F(ClosenessTest, RejectsADroppedParameter) {
  for (const auto& drop : std::vector<std::function<void(ExpertsSpec&)>>{
           [](ExpertsSpec& spec) { spec.params.slope = 1; }, [](ExpertsSpec& spec) { spec.params.shift = 0; },
           [](ExpertsSpec& spec) { spec.params.limit = 7.5f; }}) {
    LayerSpec wrong = spec_;
    drop(wrong.routed);
    EXPECT_FALSE(judge(recompute(wrong, weights_, call_, as_is), kFloat32Unit).ok());
    EXPECT_FALSE(judge(recompute(wrong, weights_, call_, to_bf16), kBf16Unit).ok());
  }
}

TEST_F(ClosenessTest, RejectsValuesAppearingOutOfNowhere) {
  const std::size_t at = largest();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    EXPECT_TRUE(rejected([&](std::vector<float>& out) { out[at] = bad; }));
}

TEST(Closeness, NaNAndInfinityMustStayWhereTheyAre) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> want{nan, infinity, -infinity, 1e300, 2},
      magnitude{nan, infinity, infinity, 1e300, 2};
  const auto judge = [&](const std::vector<float>& got) {
    return closeness({.got = got, .want = want, .magnitude = magnitude, .width = 5});
  };
  const float fnan = std::numeric_limits<float>::quiet_NaN(), finf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(judge({fnan, finf, -finf, finf, 2}).ok()) << "a double beyond float32 is stored as infinity";

  const Closeness limit_for_nan = judge({7, finf, -finf, finf, 2});
  EXPECT_FALSE(limit_for_nan.ok());
  EXPECT_EQ(limit_for_nan.misplaced, 1);
  EXPECT_EQ(limit_for_nan.element, 0);
  EXPECT_FALSE(judge({fnan, -finf, -finf, finf, 2}).ok()) << "wrong sign";
  EXPECT_FALSE(judge({fnan, finf, -finf, finf, fnan}).ok());
}

TEST(Closeness, ReportsTheWorstElement) {
  const std::vector<double> want{1, 2, 3, 4}, magnitude{1, 2, 3, 4};
  const Closeness result =
      closeness({.got = std::vector<float>{1, 2, 3.5f, 4}, .want = want, .magnitude = magnitude, .width = 2});
  EXPECT_EQ(result.token, 1);
  EXPECT_EQ(result.element, 0);
  EXPECT_EQ(result.got, 3.5);
  EXPECT_EQ(result.want, 3);
  EXPECT_NEAR(result.worst_element_units, 0.5 / 3 * 0x1p24, 1);
  EXPECT_NEAR(result.rel_l2_max, 0.1, 1e-12);  // 0.5 of the 5 of the second token
}

TEST(Closeness, ZerosAreCloseToZerosOnly) {
  const std::vector<double> zeros(4, 0.0);
  EXPECT_TRUE(
      closeness({.got = std::vector<float>(4, 0.0f), .want = zeros, .magnitude = zeros, .width = 2}).ok());
  EXPECT_FALSE(
      closeness({.got = std::vector<float>{0, 0, 1e-20f, 0}, .want = zeros, .magnitude = zeros, .width = 2})
          .ok());
}

TEST(Closeness, RefusesSizesThatDiffer) {
  const std::vector<double> want(4, 0.0);
  EXPECT_THROW(closeness({.got = std::vector<float>(3), .want = want, .magnitude = want, .width = 2}), Error);
  EXPECT_THROW(closeness({.got = std::vector<float>(4), .want = want, .magnitude = want, .width = 3}), Error);
}

}  // namespace
}  // namespace sluice::testing
