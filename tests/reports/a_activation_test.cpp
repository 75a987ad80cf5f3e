// SPDX-License-Identifier: Apache-2.0
// Section A of the reports: activation and clamp.
#include <cmath>
#include <limits>

#include "sluice/error.h"
#include "tests/reports/model.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kNone = std::numeric_limits<float>::infinity();

TEST(Reports, B01_Fp8ExpertsKeepTheLimit) {
  expect_rows(kSilu, {.limit = 10}, {{20, 15, 99.9955, Pair{24, 16}}, {5, -30, -49.6654}, {9, 9, 80.99}});
}

TEST(Reports, B02_RoutedAndSharedExpertsAreClampedAlike) {
  for (const Format format : all_formats()) {
    const Expert expert = toy_expert({format == kMxfp4 ? Pair{24, 16} : Pair{20, 15}});
    const Toy toy = make(spec_of(format, kSilu, {.limit = 10}), {expert}, &expert);
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, one_hot(128));
      EXPECT_TRUE(near(out.experts[0], 99.9955)) << backend->name << ", " << format.str();
      EXPECT_TRUE(near(out.block[0], 199.9909)) << backend->name << ", " << format.str();
      EXPECT_EQ(out.block[0], 2 * out.experts[0]) << backend->name << ", " << format.str();
    }
  }
}

TEST(Reports, B03_NoLimitIsNotALimitOfZero) {
  expect_rows(kSilu, {}, {{2, 3, 5.2848}});
  expect_rows(kSilu, {.limit = kNone}, {{2, 3, 5.2848}});
  // In a file 0, null and nothing at all mean none; decision 016 says why a spec must say infinity.
  for (const char* entry : {"\"swiglu_limit\": 0", "\"swiglu_limit\": null", "\"other\": 1"}) {
    const Edited model(fixture("deepseek_v4_fp4"),
                       [&](auto& m) { m.in_config("\"swiglu_limit\": 10.0", entry); });
    expect_rows(kSilu, model->spec(1).routed.params, {{2, 3, 5.2848}});
    expect_rows(kSilu, model->spec(1).shared->experts.params, {{2, 3, 5.2848}});
  }
  for (const float limit : {0.0f, kNan, -1.0f}) {
    const LayerSpec spec = spec_of(kBf16, kSilu, {.limit = limit});
    EXPECT_EQ(refused([&] { (void)choose({.layer = spec, .device = detect()}); }, {"limit"}), "bad_spec");
  }
  for (const char* entry : {"\"swiglu_limit\": NaN", "\"swiglu_limit\": -1"})
    refused([&] {
      Edited(fixture("deepseek_v4_fp4"), [&](auto& m) { m.in_config("\"swiglu_limit\": 10.0", entry); });
    });
}

TEST(Reports, B04_OneFamilysConstantsDoNotLeakIntoAnother) {
  expect_rows(kSilu, {}, {{1, 2, 1.4621}, {9, 9, 80.99}});
  const Edited plain(fixture("mixtral_bf16"));
  EXPECT_EQ(plain->spec(0).routed.params, ActivationParams{});
}

TEST(Reports, B05_TheLimitOfGptOssReachesTheMxfp4Kernel) {
  expect_rows(kSilu, kSwigluOai, {{8, 9, 55.9996, Pair{8, 12}}, {3, -9, -17.8916, Pair{3, -8}}});
  const Edited model(fixture("gpt_oss_mxfp4"));
  EXPECT_EQ(model->spec(0).routed.params, kSwigluOai);
}

TEST(Reports, B06_SlopeAndShiftArriveWithTheLimit) {
  expect_rows(kSilu, kSwigluOai, {{1, 2, 2.5374}, {3, -1, 0}});
  // swiglu_beta is not in the file and means 1.
  const Edited model(sample("minimax-m3"));
  EXPECT_EQ(model->spec(model->info().moe_layers.front()).routed.params, kSwigluOai);
}

const char* const kLastTwoLimits = "\"expert_swiglu_limit_list\": [\n    0,\n    0,\n    0,\n    4";
const char* const kLimits4And4 = "\"expert_swiglu_limit_list\": [\n    0,\n    0,\n    4,\n    4";

TEST(Reports, B09_EveryLayerHasItsOwnLimits) {
  // The fourth layer is the third of the report; the first of the model has no experts.
  const Edited model(sample("ling-3.0"), [](auto& m) { m.in_config(kLastTwoLimits, kLimits4And4); });
  const double routed[] = {35.911, 16, 16}, with_shared[] = {35.911, 25, 35.911};
  for (int layer = 1; layer <= 3; ++layer) {
    const LayerSpec spec = model->spec(layer);
    const auto i = static_cast<std::size_t>(layer - 1);
    expect_rows(spec.routed.activation, spec.routed.params, {{6, 6, routed[i]}});
    expect_rows(spec.shared->experts.activation, spec.shared->experts.params, {{6, 6, with_shared[i]}});
    // And both in one layer.
    const Expert expert = toy_expert({{6, 6}});
    LayerSpec both = spec_of(kBf16, spec.routed.activation, spec.routed.params);
    both.shared = SharedSpec{.experts = both.routed};
    both.shared->experts.params = spec.shared->experts.params;
    const Toy toy = make(both, {expert}, &expert);
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, one_hot(128));
      EXPECT_TRUE(near(out.experts[0], routed[i])) << backend->name << ", layer " << layer;
      EXPECT_TRUE(near(out.block[0] - out.experts[0], with_shared[i]))
          << backend->name << ", layer " << layer;
    }
  }
  const auto with_list = [](const char* list) {
    return [list] { Edited(sample("ling-3.0"), [&](auto& m) { m.in_config(kLastTwoLimits, list); }); };
  };
  EXPECT_EQ(refused(with_list("\"expert_swiglu_limit_list\": [\n    0,\n    4"), {"2 entries", "4 layers"}),
            "short_layer_list");
}

TEST(Reports, B10_TheSharedExpertIsClamped) {
  for (const Format format : all_formats()) {
    const Expert expert = toy_expert({format == kMxfp4 ? Pair{24, 16} : Pair{20, 15}, {4, 4}});
    const Toy toy =
        make(spec_of(format, kSilu, {.limit = 10}), {Expert{.gate = {}, .up = {}, .down = {}}}, &expert);
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, one_hot(128));
      EXPECT_TRUE(near(out.block[0], 99.9955)) << backend->name << ", " << format.str();
      EXPECT_TRUE(near(out.block[32], 15.7122)) << backend->name << ", " << format.str();
      EXPECT_EQ(out.experts[0], 0) << backend->name << ", " << format.str();
    }
  }
  const Edited model(fixture("deepseek_v4_fp4"));
  EXPECT_EQ(model->spec(1).shared->experts.params.limit, 10);
}

/// What an int8 of the token would keep is 0.7874; nothing here rounds between the products, so the answer is
/// exact. Clamped late the large value would set the scale, and in 8 bits the small one would be lost.
TEST(Reports, B11_TheClampComesBeforeAnythingIsRounded) {
  expect_rows(kSilu, {.limit = 10},
              {{20, 15, 99.9955, Pair{24, 16}}, {10, 0.09375, 0.937457, Pair{12, 0.09375}}});
  // The same when the unclamped value is 10^6 times the small one.
  expect_rows(kSilu, {.limit = 10}, {{448, 448, 99.9955, Pair{384, 384}}, {12, 0.0078125, 0.078121}});
}

TEST(Reports, B13_WhatIsDeclaredIsClampedAndTheRestIsRefused) {
  int ran = 0;
  for (const Format format : all_formats()) {
    const Pair far = format == kMxfp4 ? Pair{24, 16} : Pair{20, 15};
    Activations::everything().each([&](Activation activation) {
      const activation::Reads reads = Activations::visit(activation, []<class A>() { return A::reads; });
      LayerSpec spec = spec_of(format, activation, {.limit = 10});
      if (!reads.limit) {
        EXPECT_EQ(refused([&] { (void)choose({.layer = spec, .device = detect()}); }, {"has no limit"}),
                  "bad_spec");
        return;
      }
      const Toy toy = make(spec, {toy_expert({far})});
      for (const Backend* backend : fitting(toy.spec)) {
        ++ran;
        const double want = activation == kSilu ? 99.9955 : 100;
        EXPECT_TRUE(near(run(*backend, toy, one_hot(128)).experts[0], want))
            << backend->name << ", " << format.str() << ", " << activation.str();
      }
      if (!reads.slope) return;
      const Toy oai = make(spec_of(format, activation, kSwigluOai), {toy_expert({far})});
      for (const Backend* backend : fitting(oai.spec))
        EXPECT_TRUE(near(run(*backend, oai, one_hot(128)).experts[0], 55.9996)) << backend->name;
    });
  }
  EXPECT_GE(ran, static_cast<int>(2 * all_formats().size()));
}

TEST(Reports, B14_AnUnknownActivationIsRefused) {
  EXPECT_FALSE(Activation::parse("X"));
  const auto named_x = [] {
    Edited(fixture("deepseek_v4_fp4"), [](auto& m) {
      m.in_config("\"hidden_act\": \"silu\"", "\"hidden_act\": \"X\"");
      m.in_config("\"swiglu_limit\": 10.0", "\"swiglu_limit\": 0.5");
    });
  };
  EXPECT_EQ(refused(named_x, {"hidden_act", "X"}), "unknown_activation");
  expect_rows(kSilu, {}, {{4, 4, 15.7122}});
}

/// Raw sums of 20480 and 15360 that a second scale of 1/1024 makes 20 and 15. Clamped before it, they would
/// give 4.792e-05.
TEST(Reports, B15_TheLimitIsInRealUnits) {
  Expert expert = toy_expert({{4, 4}});
  const Toy plain = make(spec_of(kNvfp4, kSilu, {.limit = 10}), {expert});
  const auto matrix_of = [](float scale) {
    format::Encoded made = matrix(kNvfp4, {128, 128}, {{0, 0, 1}});
    put_code(made, 0, 0, 0x6);  // 4
    put_scale(made, 0, 0, scale);
    made.matrix.second_scale = 1.0f / 1024;
    return shared(std::move(made));
  };
  const auto gate = matrix_of(320), up = matrix_of(240);
  Toy toy = plain;
  toy.weights.routed[0].gate = gate->matrix;
  toy.weights.routed[0].up = up->matrix;
  for (const Backend* backend : fitting(toy.spec))
    EXPECT_TRUE(near(run(*backend, toy, one_hot(128, 1, 16)).experts[0], 99.9955)) << backend->name;
}

}  // namespace
}  // namespace sluice::reports
