// SPDX-License-Identifier: Apache-2.0
// Section G of the reports: routing.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "sluice/error.h"
#include "sluice/lint.h"
#include "tests/reports/model.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  bool operator==(const Routed&) const = default;
};

Routed route(const RouterSpec& spec, const std::vector<float>& logits, const std::vector<float>& bias = {}) {
  const int tokens = static_cast<int>(logits.size()) / spec.experts;
  Routed out{std::vector<std::int32_t>(static_cast<std::size_t>(tokens * spec.top_k)), {}};
  out.weights.resize(out.ids.size());
  std::vector<std::byte> scratch(top_k_scratch_bytes(spec));
  top_k(spec, {.logits = logits, .tokens = tokens, .selection_bias = bias}, out.ids, out.weights, scratch);
  return out;
}

RouterSpec router(std::string_view score, int experts, int top_k, bool renormalise = false) {
  return {.score = *Score::parse(score), .experts = experts, .top_k = top_k, .renormalise = renormalise};
}

/// Decision 016: a NaN names no expert, -1, where the report's rule takes the lowest ids with weight 0.
TEST(Reports, B68_NanLogitsNameNoExpertTwice) {
  std::vector<float> logits(4 * 8, -1);
  std::fill_n(logits.begin(), 8, kNan);
  std::fill_n(logits.begin() + 8, 8, kInfinity);
  std::fill_n(logits.begin() + 16, 8, -kInfinity);
  const float normal[] = {3, 1, 2, 0};
  std::copy_n(normal, 4, logits.begin() + 24);
  for (const std::string_view score : Score::all()) {
    const Routed out = route(router(score, 8, 4, true), logits);
    for (std::size_t row = 0; row < 4; ++row) {
      std::set<std::int32_t> seen;
      for (std::size_t i = row * 4; i < row * 4 + 4; ++i) {
        EXPECT_TRUE(std::isfinite(out.weights[i])) << score << ", row " << row;
        EXPECT_TRUE(out.ids[i] >= -1 && out.ids[i] < 8) << score << ", row " << row;
        EXPECT_TRUE(out.ids[i] < 0 || seen.insert(out.ids[i]).second) << score << ", row " << row;
        EXPECT_TRUE(out.ids[i] >= 0 || out.weights[i] == 0) << score << ", row " << row;
      }
      const std::set<std::int32_t> lowest{0, 1, 2, 3};
      EXPECT_TRUE(row == 0 ? seen.empty() : seen == lowest) << score << ", row " << row;
    }
    EXPECT_EQ(std::vector<std::int32_t>(out.ids.begin() + 12, out.ids.end()),
              (std::vector<std::int32_t>{0, 2, 1, 3}))
        << score;
    // The normal row is what it is alone.
    const Routed alone = route(router(score, 8, 4, true), {logits.begin() + 24, logits.end()});
    EXPECT_TRUE(std::equal(alone.weights.begin(), alone.weights.end(), out.weights.begin() + 12)) << score;
  }
  // A layer takes -1 in its stride: a token of NaN logits gets nothing from the routed experts.
  const Toy toy = make(spec_of(kBf16, kSilu, {}, {.experts = 8, .top_k = 4}),
                       std::vector<Expert>(8, toy_expert({{2, 3}})));
  Call call = one_hot(128, 4);
  call.logits = logits;
  for (const Backend* backend : fitting(toy.spec)) {
    const Output out = run(*backend, toy, call);
    EXPECT_EQ(out.experts[0], 0) << backend->name;
    for (std::size_t t = 1; t < 4; ++t) EXPECT_TRUE(std::isfinite(out.experts[t * 128])) << backend->name;
  }
}

TEST(Reports, B70_SoftmaxBeforeAndAfterSelecting) {
  const std::vector<float> logits{2, 1, 0, -1};
  const Routed renormalised = route(router("softmax", 4, 2, true), logits);
  const Routed selected_first = route(router("softmax_selected", 4, 2), logits);
  const Routed as_they_are = route(router("softmax", 4, 2), logits);
  for (const Routed* out : {&renormalised, &selected_first}) {
    EXPECT_EQ(out->ids, (std::vector<std::int32_t>{0, 1}));
    EXPECT_NEAR(out->weights[0], 0.731059, 1e-6);
    EXPECT_NEAR(out->weights[1], 0.268941, 1e-6);
  }
  EXPECT_NEAR(as_they_are.weights[0], 0.643914, 1e-6);
  EXPECT_NEAR(as_they_are.weights[1], 0.236883, 1e-6);
}

/// Toy A, top 1 of 2, p = 1, and a shared expert whose output is 1.
Toy scaled(Format format, float factor) {
  LayerSpec spec = spec_of(format, kSilu, {}, {.experts = 2});
  spec.router.renormalise = true;
  spec.router.scale = factor;
  const Expert expert = toy_expert({{2, 3}});
  const Expert one{.gate = {}, .up = {}, .down = {}, .down_bias = std::vector<float>(128, 1)};
  return make(spec, {expert, expert}, &one);
}

Call routed_by_logits() {
  Call call = one_hot(128);
  call.logits = {1, 3};
  return call;
}

TEST(Reports, B71_TheFactorIsAppliedOnceAndToRoutedExpertsOnly) {
  for (const Format format : all_formats())
    for (const float factor : {2.5f, 1.5f}) {
      const Toy toy = scaled(format, factor);
      for (const Backend* backend : fitting(toy.spec)) {
        const Output out = run(*backend, toy, routed_by_logits());
        EXPECT_TRUE(near(out.experts[0], factor == 2.5f ? 13.212 : 1.5 * 5.28478)) << backend->name;
        EXPECT_TRUE(near(out.block[0], double{out.experts[0]} + 1)) << backend->name << ", " << format.str();
        EXPECT_EQ(out.weights[0], factor) << backend->name;
      }
    }
}

TEST(Reports, B72_TheFactorIsNotDropped) {
  for (const Format format : all_formats()) {
    const Toy once = scaled(format, 2.827f), twice = scaled(format, 2 * 2.827f);
    for (const Backend* backend : fitting(once.spec)) {
      const Output out = run(*backend, once, routed_by_logits());
      EXPECT_TRUE(near(out.experts[0], 14.9401)) << backend->name << ", " << format.str();
      EXPECT_EQ(run(*backend, twice, routed_by_logits()).experts[0], 2 * out.experts[0]) << backend->name;
    }
  }
  const Edited model(fixture("deepseek_v4_fp4"));
  EXPECT_EQ(model->spec(1).router.scale, 1.5f);
}

/// Sigmoids of 0 are 1/2; the bias makes the biased scores of the report.
TEST(Reports, B74_AGroupThatIsOutStaysOutWithNegativeScores) {
  for (const GroupScore kind : {GroupScore::best, GroupScore::two_best}) {
    RouterSpec spec = router("sigmoid", 4, 2);
    spec.groups = 2;
    spec.groups_kept = 1;
    spec.group_score = kind;
    spec.selection_bias = true;
    const std::vector<float> zeros(4);
    EXPECT_EQ(route(spec, zeros, {-0.6f, -0.7f, -1.0f, -1.1f}).ids, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(route(spec, zeros, {-3.5f, -4.5f, -5.5f, -6.5f}).ids, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(route(spec, zeros, {-5.5f, -6.5f, -3.5f, -4.5f}).ids, (std::vector<std::int32_t>{2, 3}));
  }
}

TEST(Reports, B75_TheLowerIdWinsATie) {
  for (const std::string_view score : Score::all()) {
    const RouterSpec spec = router(score, 384, 6);
    const Routed first = route(spec, std::vector<float>(384));
    EXPECT_EQ(first.ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5})) << score;
    for (int repeat = 0; repeat < 20; ++repeat)
      EXPECT_EQ(route(spec, std::vector<float>(384)), first) << score;
    // 5 and 120 are equal, and one of them is the sixth.
    std::vector<float> logits(384, -4);
    for (const std::size_t e : {300u, 301u, 302u, 303u, 304u}) logits[e] = 5;
    logits[302] = 6;
    logits[120] = logits[5] = 4;
    EXPECT_EQ(route(spec, logits).ids, (std::vector<std::int32_t>{302, 300, 301, 303, 304, 5})) << score;
  }
  RouterSpec grouped = router("sigmoid", 8, 2);
  grouped.groups = 4;
  grouped.groups_kept = 2;
  EXPECT_EQ(route(grouped, {0, 0, 1, 0, 1, 0, 1, 0}).ids, (std::vector<std::int32_t>{2, 4}));
}

TEST(Reports, B76_LogitsStayFloat32UntilTheChoice) {
  for (const std::string_view score : Score::all())
    EXPECT_EQ(route(router(score, 2, 1), {1.0001f, 1.0002f}).ids[0], 1) << score;
  // The layer's own router, too: a bias of float32 makes those logits.
  LayerSpec spec = spec_of(kBf16, kSilu, {}, {.experts = 2});
  spec.router.bias = true;
  Toy toy = make(spec, {toy_expert({{2, 3}}), toy_expert({{3, 2}})});
  const auto weight = shared(matrix(kBf16, {2, 128}, {{0, 0, 1}, {1, 0, 1}}));
  const float bias[] = {0.0001f, 0.0002f};
  toy.weights.router.weight = weight->matrix;
  toy.weights.router.bias = {reinterpret_cast<const std::byte*>(bias), DType::f32, 2, 4};
  for (const Backend* backend : fitting(spec))
    EXPECT_EQ(run_own_router(layer_on(*backend, toy), one_hot(128)).ids[0], 1) << backend->name;
}

TEST(Reports, B78_MinusOneIsNoExpert) {
  Toy toy = make(spec_of(kMxfp4, kSilu, {}, {.experts = 4, .top_k = 2}),
                 {toy_expert({{2, 3}}), toy_expert({{3, 2}}), toy_expert({{1, 2}}), toy_expert({{4, 4}})});
  Call call = one_hot(128, 2);
  call.ids = {0, -1, -1, -1};
  call.weights = {0.6f, 0.4f, 0.5f, 0.5f};
  for (const Backend* backend : fitting(toy.spec)) {
    const Output whole = run(*backend, toy, call);
    EXPECT_TRUE(near(whole.experts[0], 0.6 * 5.28478)) << backend->name;
    for (std::size_t i = 128; i < 256; ++i) EXPECT_EQ(whole.experts[i], 0) << backend->name;
    // Four ranks, one of which has no expert at all.
    std::vector<float> sum(256);
    for (const std::vector<std::int32_t>& rank : {std::vector<std::int32_t>{1, 3}, {}, {0}, {2}}) {
      Toy part = toy;
      part.spec.routed.local_experts = static_cast<int>(rank.size());
      part.weights.routed.clear();
      std::vector<std::int32_t> map(4, -1);
      for (std::size_t i = 0; i < rank.size(); ++i) {
        map[static_cast<std::size_t>(rank[i])] = static_cast<std::int32_t>(i);
        part.weights.routed.push_back(toy.weights.routed[static_cast<std::size_t>(rank[i])]);
      }
      const Layer layer(plan_on(*backend, part.spec), part.weights, {.expert_map = map});
      const Output out = run(layer, call);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += out.experts[i];
    }
    EXPECT_EQ(sum, whole.experts) << backend->name;
  }
}

TEST(Reports, B80_TheRouterIsReadAsItIsStored) {
  const auto without_ignore = [](auto& m) { m.in_config("\"lm_head\",\n   \"re:.*gate$\"", "\"lm_head\""); };
  const Edited model(fixture("qwen3_moe_ct_nvfp4"), without_ignore);
  EXPECT_EQ(model->weights(0).router.weight->format, kBf16);
  EXPECT_EQ(model->spec(0).routed.formats.up, kNvfp4);
  EXPECT_EQ(refused(
                [&] {
                  Edited(fixture("qwen3_moe_ct_nvfp4"), [&](auto& m) {
                    without_ignore(m);
                    m.remove("model.layers.0.mlp.gate.weight");
                  });
                },
                {"model.layers.0.mlp.gate.weight"}),
            "missing_tensor");
  // All zeros: every token to the lowest ids, the same every time.
  const Edited zero(fixture("qwen3_moe_ct_nvfp4"), [](auto& m) {
    std::ranges::fill(m.tensor("model.layers.0.mlp.gate.weight").bytes, std::byte{0});
  });
  const auto threads = make_thread_team(2);
  const auto warned = [&](const Edited& of) {
    return std::ranges::any_of(lint(*of, *threads).findings, [](const Finding& one) {
      return one.code == "router_all_zero" && one.severity != Severity::note && one.layer == 0;
    });
  };
  EXPECT_TRUE(warned(zero));
  EXPECT_FALSE(warned(model));
  const Toy toy{.spec = zero->spec(0), .weights = zero->weights(0)};
  const Call call{.tokens = 3, .hidden = draw_rows(3, 256, 1)};
  for (const Backend* backend : fitting(toy.spec))
    EXPECT_EQ(run_own_router(layer_on(*backend, toy), call).ids,
              (std::vector<std::int32_t>{0, 1, 0, 1, 0, 1}))
        << backend->name;
}

}  // namespace
}  // namespace sluice::reports
