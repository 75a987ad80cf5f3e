// SPDX-License-Identifier: Apache-2.0
// Each rule of include/sluice/routing.h, by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "routing/scores.h"
#include "sluice/error.h"
#include "tests/routing/route.h"

namespace sluice {
namespace {

using testing_routing::Call;
using testing_routing::route;
using testing_routing::Routed;
using testing_routing::score;
using Ids = std::vector<std::int32_t>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::string_view kScores[] = {"softmax", "softmax_selected", "sigmoid", "sigmoid_selected",
                                    "sqrt_softplus"};

void expect_weights(const Routed& got, const std::vector<double>& want, double within = 1e-6) {
  ASSERT_EQ(got.weights.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got.weights[i], want[i], within) << "slot " << i;
}

TEST(Score, NamesParseToThemselves) {
  ASSERT_EQ(std::vector<std::string_view>(Score::all().begin(), Score::all().end()),
            std::vector<std::string_view>(std::begin(kScores), std::end(kScores)));
  for (const std::string_view name : kScores) EXPECT_EQ(score(name).str(), name);
  EXPECT_FALSE(Score::parse("topk"));
}

TEST(TopK, SoftmaxRunsOverAllExperts) {
  const double sum = std::exp(1.0) + std::exp(3.0) + std::exp(2.0) + std::exp(0.0);
  const Routed got = route({.score = score("softmax"), .experts = 4, .top_k = 2}, {.logits = {1, 3, 2, 0}});
  EXPECT_EQ(got.ids, (Ids{1, 2}));
  expect_weights(got, {std::exp(3.0) / sum, std::exp(2.0) / sum});
}

TEST(TopK, SoftmaxSelectedRunsOverTheSelected) {
  const double sum = std::exp(3.0) + std::exp(2.0);
  const Routed got =
      route({.score = score("softmax_selected"), .experts = 4, .top_k = 2}, {.logits = {1, 3, 2, 0}});
  EXPECT_EQ(got.ids, (Ids{1, 2}));
  expect_weights(got, {std::exp(3.0) / sum, std::exp(2.0) / sum});
}

TEST(TopK, Sigmoid) {
  const Routed got = route({.score = score("sigmoid"), .experts = 3, .top_k = 2}, {.logits = {-1, 2, -30}});
  EXPECT_EQ(got.ids, (Ids{1, 0}));
  expect_weights(got, {1 / (1 + std::exp(-2.0)), 1 / (1 + std::exp(1.0))});
}

TEST(TopK, SigmoidSelectedTakesTheLargestLogitWhereSigmoidsAreAllOne) {
  const Routed got =
      route({.score = score("sigmoid_selected"), .experts = 2, .top_k = 1}, {.logits = {20, 25}});
  EXPECT_EQ(got.ids, Ids{1});
  expect_weights(got, {1.0});
  const Routed low =
      route({.score = score("sigmoid_selected"), .experts = 3, .top_k = 2}, {.logits = {-1, 2, -30}});
  EXPECT_EQ(low.ids, (Ids{1, 0}));
  expect_weights(low, {1 / (1 + std::exp(-2.0)), 1 / (1 + std::exp(1.0))});
}

TEST(TopK, SqrtSoftplus) {
  const Routed got =
      route({.score = score("sqrt_softplus"), .experts = 3, .top_k = 3}, {.logits = {0, 2, -5}});
  EXPECT_EQ(got.ids, (Ids{1, 0, 2}));
  const auto want = [](double x) { return std::sqrt(std::log1p(std::exp(x))); };
  expect_weights(got, {want(2), want(0), want(-5)});
}

TEST(TopK, SqrtSoftplusIsStableFarOut) {
  const Routed got = route({.score = score("sqrt_softplus"), .experts = 5, .top_k = 5},
                           {.logits = {1000, 100, 89, -80, -1000}});
  EXPECT_EQ(got.ids, (Ids{0, 1, 2, 3, 4}));
  expect_weights(got, {std::sqrt(1000.0), 10, std::sqrt(89.0), std::exp(-40.0), 0}, 1e-5);
  EXPECT_NEAR(got.weights[3] / std::exp(-40.0), 1.0, 1e-5);
}

TEST(TopK, ItsOwnExpAndLogAreRoundedOnce) {
  // Half a unit of the last place is what rounding costs; the rest is the double arithmetic's.
  const auto units = [](float got, double want) {
    const float nearest = static_cast<float>(want);
    const float next = std::nextafter(nearest, kInfinity);
    return std::abs(static_cast<double>(got) - want) / (static_cast<double>(next) - nearest);
  };
  for (int i = 0; i < 200000; ++i) {
    const float x = -0.0005193f * static_cast<float>(i) - 1e-7f * static_cast<float>(i % 7);
    const float e = score::exp_of_negative(x);
    ASSERT_LE(units(e, std::exp(static_cast<double>(x))), 0.5001) << x;
    ASSERT_LE(units(score::log_of_one_plus(e), std::log1p(static_cast<double>(e))), 0.5001) << x;
  }
  EXPECT_EQ(score::exp_of_negative(0.0f), 1.0f);
  EXPECT_EQ(score::exp_of_negative(-kInfinity), 0.0f);
  EXPECT_EQ(score::exp_of_negative(-103.97f), 0x1p-149f);
  EXPECT_EQ(score::exp_of_negative(-104.0f), 0.0f);
  EXPECT_TRUE(std::isnan(score::exp_of_negative(std::nanf(""))));
  EXPECT_TRUE(std::isnan(score::sqrt_softplus(std::nanf(""))));
  EXPECT_EQ(score::sqrt_softplus(kInfinity), kInfinity);
  EXPECT_EQ(score::sqrt_softplus(-kInfinity), 0.0f);
}

TEST(TopK, SigmoidIsStableFarOut) {
  const Routed got =
      route({.score = score("sigmoid"), .experts = 3, .top_k = 3}, {.logits = {200, -80, -200}});
  EXPECT_NEAR(got.weights[1] / std::exp(-80.0), 1.0, 1e-5);
  EXPECT_EQ(got.weights[0], 1.0f);
  EXPECT_EQ(got.weights[2], 0.0f);
}

TEST(TopK, LowestIdWinsTies) {
  for (const std::string_view name : kScores) {
    const Routed got =
        route({.score = score(name), .experts = 6, .top_k = 4}, {.logits = {1, 2, 1, 2, 1, 2}});
    EXPECT_EQ(got.ids, (Ids{1, 3, 5, 0})) << name;
  }
  std::vector<float> equal(300, 0.5f);
  const Routed got = route({.score = score("softmax"), .experts = 300, .top_k = 300}, {.logits = equal});
  Ids want(300);
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(got.ids, want);
}

TEST(TopK, ExpertScaleWeighsButNeverSelects) {
  RouterSpec spec{.score = score("softmax"), .experts = 4, .top_k = 2, .renormalise = true};
  const Call plain{.logits = {0.4f, 0.3f, 0.2f, 0.1f}};
  const Routed without = route(spec, plain);
  spec.expert_scale = true;
  const Routed with = route(spec, {.logits = plain.logits, .expert_scale = {0.5f, 4, 100, 100}});
  EXPECT_EQ(with.ids, without.ids);
  EXPECT_EQ(with.weights[0], 0.5f * without.weights[0]);
  EXPECT_EQ(with.weights[1], 4 * without.weights[1]);
}

TEST(TopK, SelectionBiasSelectsButNeverWeighs) {
  for (const std::string_view name : kScores) {
    RouterSpec spec{.score = score(name), .experts = 4, .top_k = 2};
    const Call plain{.logits = {0.4f, 0.3f, 0.2f, 0.1f}};
    EXPECT_EQ(route(spec, plain).ids, (Ids{0, 1})) << name;
    Call biased = plain;
    biased.selection_bias = {0, 0, 5, 9};
    spec.selection_bias = true;
    const Routed got = route(spec, biased);
    EXPECT_EQ(got.ids, (Ids{3, 2})) << name;
    spec.selection_bias = false;
    spec.top_k = 4;  // all of them, to read the weights off
    if (name == "softmax_selected") continue;
    const Routed all = route(spec, plain);
    EXPECT_EQ(got.weights[0], all.weights[3]) << name;
    EXPECT_EQ(got.weights[1], all.weights[2]) << name;
  }
}

TEST(TopK, RenormaliseThenScaleOnce) {
  const RouterSpec spec{
      .score = score("sigmoid"), .experts = 4, .top_k = 2, .renormalise = true, .scale = 2.5f};
  const Routed got = route(spec, {.logits = {1, 3, 2, 0}});
  const double a = 1 / (1 + std::exp(-3.0)), b = 1 / (1 + std::exp(-2.0));
  expect_weights(got, {2.5 * a / (a + b), 2.5 * b / (a + b)});
}

TEST(TopK, ScaleWithoutRenormalising) {
  const Routed got =
      route({.score = score("sigmoid"), .experts = 2, .top_k = 1, .scale = 16.0f}, {.logits = {1, 3}});
  expect_weights(got, {16 / (1 + std::exp(-3.0))}, 1e-5);
}

TEST(TopK, ASumOfZeroStaysZero) {
  const RouterSpec spec{
      .score = score("sigmoid"), .experts = 3, .top_k = 2, .renormalise = true, .scale = 2.5f};
  const Routed got = route(spec, {.logits = {-1000, -1000, -1000}});
  EXPECT_EQ(got.ids, (Ids{0, 1}));
  expect_weights(got, {0, 0}, 0);
}

TEST(TopK, GroupsByTheirBest) {
  RouterSpec spec{.score = score("softmax"), .experts = 6, .top_k = 2, .groups = 3, .groups_kept = 1};
  const Routed got = route(spec, {.logits = {5, 0, 4, 4.5f, 1, 2}});
  EXPECT_EQ(got.ids, (Ids{0, 1}));  // group 0 has the best expert, so its worse one comes before group 1
  spec.groups_kept = 2;
  EXPECT_EQ(route(spec, {.logits = {5, 0, 4, 4.5f, 1, 2}}).ids, (Ids{0, 3}));
}

TEST(TopK, GroupsByTheSumOfTheirTwoBest) {
  const RouterSpec spec{.score = score("sigmoid"),
                        .experts = 6,
                        .top_k = 2,
                        .groups = 2,
                        .groups_kept = 1,
                        .group_score = GroupScore::two_best};
  EXPECT_EQ(route(spec, {.logits = {3, -3, -3, 1, 1, -3}}).ids, (Ids{3, 4}));
}

/// DeepSeek-V3: groups are ranked by score plus bias, weights are the score alone.
TEST(TopK, GroupScoresIncludeTheBias) {
  const RouterSpec spec{.score = score("sigmoid"),
                        .experts = 4,
                        .top_k = 1,
                        .groups = 2,
                        .groups_kept = 1,
                        .group_score = GroupScore::two_best,
                        .selection_bias = true};
  const Routed got = route(spec, {.logits = {2, 1, 0, 0}, .selection_bias = {0, 0, 1, 1.5f}});
  EXPECT_EQ(got.ids, (Ids{3}));
  expect_weights(got, {0.5});
}

TEST(TopK, TiedGroupsGoToTheLowest) {
  const RouterSpec spec{.score = score("sigmoid"), .experts = 4, .top_k = 3, .groups = 4, .groups_kept = 2};
  EXPECT_EQ(route(spec, {.logits = {1, 1, 1, 1}}).ids, (Ids{0, 1, -1}));
}

TEST(TopK, GroupsOfOneExpertHaveOneBest) {
  const RouterSpec spec{.score = score("sigmoid"),
                        .experts = 3,
                        .top_k = 1,
                        .groups = 3,
                        .groups_kept = 1,
                        .group_score = GroupScore::two_best};
  EXPECT_EQ(route(spec, {.logits = {1, 3, 2}}).ids, (Ids{1}));
}

TEST(TopK, FewerSelectableThanAsked) {
  const RouterSpec spec{.score = score("sigmoid"),
                        .experts = 4,
                        .top_k = 3,
                        .groups = 2,
                        .groups_kept = 1,
                        .renormalise = true};
  const Routed got = route(spec, {.logits = {0, 0, 9, 8}});
  EXPECT_EQ(got.ids, (Ids{2, 3, -1}));
  EXPECT_EQ(got.weights[2], 0.0f);
  EXPECT_NEAR(got.weights[0] + got.weights[1], 1.0f, 1e-6);
}

TEST(TopK, NanNeverSelectsAndEntersNoSum) {
  for (const std::string_view name : kScores)
    for (const bool renormalise : {false, true}) {
      const RouterSpec spec{.score = score(name), .experts = 5, .top_k = 3, .renormalise = renormalise};
      const Routed got = route(spec, {.logits = {NAN, 1, NAN, 3, 2}});
      EXPECT_EQ(got.ids, (Ids{3, 4, 1})) << name;
      const RouterSpec three{.score = score(name), .experts = 3, .top_k = 3, .renormalise = renormalise};
      EXPECT_EQ(got.weights, route(three, {.logits = {1, 3, 2}}).weights) << name;
    }
}

TEST(TopK, AllNan) {
  for (const std::string_view name : kScores)
    for (const int groups : {1, 2}) {
      const RouterSpec spec{
          .score = score(name), .experts = 4, .top_k = 2, .groups = groups, .renormalise = true, .scale = 3};
      const Routed got = route(spec, {.logits = {NAN, NAN, NAN, NAN}});
      EXPECT_EQ(got.ids, (Ids{-1, -1})) << name;
      EXPECT_EQ(got.weights, (std::vector<float>{0, 0})) << name;
    }
}

TEST(TopK, NanAnywhereNeverWins) {
  for (const std::string_view name : kScores)
    for (unsigned where = 0; where < 8; ++where) {
      std::vector<float> logits = {0.1f, 0.7f, 0.3f, 0.2f, 0.9f, 0.5f, 0.4f, 0.6f};
      logits[where] = NAN;
      const RouterSpec spec{.score = score(name),
                            .experts = 8,
                            .top_k = 8,
                            .groups = 4,
                            .groups_kept = 3,
                            .group_score = GroupScore::two_best};
      for (const std::int32_t id : route(spec, {.logits = logits}).ids)
        EXPECT_NE(id, static_cast<int>(where)) << name;
    }
}

TEST(TopK, NanBiasNeverSelects) {
  const RouterSpec spec{.score = score("sigmoid"), .experts = 3, .top_k = 2, .selection_bias = true};
  EXPECT_EQ(route(spec, {.logits = {9, 1, 2}, .selection_bias = {NAN, 0, 0}}).ids, (Ids{2, 1}));
}

TEST(TopK, InfiniteLogits) {
  for (const std::string_view name : kScores)
    for (const bool renormalise : {false, true}) {
      const RouterSpec spec{.score = score(name), .experts = 4, .top_k = 2, .renormalise = renormalise};
      for (const std::vector<float>& logits :
           {std::vector<float>{-kInfinity, -kInfinity, -kInfinity, -kInfinity},
            {kInfinity, 0, kInfinity, -kInfinity},
            {0, kInfinity, 1, 2},
            {-kInfinity, 3, -kInfinity, -kInfinity}}) {
        const Routed got = route(spec, {.logits = logits});
        for (const float w : got.weights) EXPECT_FALSE(std::isnan(w)) << name;
        for (const std::int32_t id : got.ids) EXPECT_GE(id, 0) << name;
      }
    }
  const RouterSpec spec{.score = score("softmax"), .experts = 3, .top_k = 3};
  expect_weights(route(spec, {.logits = {kInfinity, 1, kInfinity}}), {0.5, 0.5, 0});
  expect_weights(route(spec, {.logits = {-kInfinity, -kInfinity, -kInfinity}}), {1 / 3., 1 / 3., 1 / 3.});
  const RouterSpec v4{.score = score("sqrt_softplus"), .experts = 3, .top_k = 2, .renormalise = true};
  expect_weights(route(v4, {.logits = {kInfinity, 1, 2}}), {1, 0});
}

TEST(TopK, InfiniteGroups) {
  const RouterSpec spec{.score = score("softmax_selected"),
                        .experts = 4,
                        .top_k = 1,
                        .groups = 2,
                        .groups_kept = 1,
                        .group_score = GroupScore::two_best};
  EXPECT_EQ(route(spec, {.logits = {1, 1, kInfinity, -kInfinity}}).ids, (Ids{2}));
}

TEST(TopK, ByTokenIdTakesIdsFromTheTableAndWeightsFromTheScores) {
  const RouterSpec spec{.score = score("sqrt_softplus"),
                        .experts = 4,
                        .top_k = 2,
                        .renormalise = true,
                        .scale = 1.5f,
                        .by_token_id = true};
  const Call call{.logits = {0, 1, 2, 3, 3, 2, 1, 0}, .table = {0, 1, 3, 0, 2, 2}, .token_ids = {1, 0}};
  const Routed got = route(spec, call);
  EXPECT_EQ(got.ids, (Ids{3, 0, 0, 1}));
  const auto s = [](double x) { return std::sqrt(std::log1p(std::exp(x))); };
  expect_weights(got, {1.5 * s(3) / (s(3) + s(0)), 1.5 * s(0) / (s(3) + s(0)), 1.5 * s(3) / (s(3) + s(2)),
                       1.5 * s(2) / (s(3) + s(2))});
}

TEST(TopK, ByTokenIdSkipsWhatIsNoExpertAndNan) {
  const RouterSpec spec{
      .score = score("sigmoid"), .experts = 3, .top_k = 3, .renormalise = true, .by_token_id = true};
  const Routed got = route(spec, {.logits = {NAN, 0, 0}, .table = {7, 1, 0}, .token_ids = {0}});
  EXPECT_EQ(got.ids, (Ids{-1, 1, -1}));
  expect_weights(got, {0, 1, 0});
}

TEST(TopK, OneExpert) {
  for (const std::string_view name : kScores) {
    const RouterSpec spec{.score = score(name), .experts = 1, .top_k = 1, .renormalise = true};
    const Routed got = route(spec, {.logits = {-3, 4}});
    EXPECT_EQ(got.ids, (Ids{0, 0})) << name;
    expect_weights(got, {1, 1});
  }
}

TEST(TopK, NoTokens) {
  const Routed got = route({.score = score("softmax"), .experts = 8, .top_k = 2}, {});
  EXPECT_TRUE(got.ids.empty());
}

void expect_refused(const RouterSpec& spec, const Call& call, const std::string& code) {
  try {
    route(spec, call);
    FAIL() << "was taken, expected " << code;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_EQ(error.info().code, code) << error.what();
  }
}

TEST(TopK, RefusesRoutersThatMakeNoSense) {
  const Score s = score("softmax");
  const Call four{.logits = {1, 2, 3, 4}};
  expect_refused({.score = s, .experts = 4, .top_k = 5}, four, "bad_router");
  expect_refused({.score = s, .experts = 4, .top_k = 0}, four, "bad_router");
  expect_refused({.score = s, .experts = 4, .top_k = 1, .groups = 3}, four, "bad_router");
  expect_refused({.score = s, .experts = 4, .top_k = 1, .groups = 2, .groups_kept = 3}, four, "bad_router");
  expect_refused({.score = s, .experts = 4, .top_k = 1, .groups = 2, .groups_kept = 0}, four, "bad_router");
}

TEST(TopK, RefusesSizesThatDoNotFit) {
  const Score s = score("softmax");
  expect_refused({.score = s, .experts = 4, .top_k = 1}, {.logits = {1, 2, 3, 4, 5}}, "bad_routing_size");
  expect_refused({.score = s, .experts = 4, .top_k = 1, .selection_bias = true},
                 {.logits = {1, 2, 3, 4}, .selection_bias = {1, 2, 3}}, "bad_routing_size");
  expect_refused({.score = s, .experts = 2, .top_k = 1}, {.logits = {1, 2}, .selection_bias = {1, 2}},
                 "bad_routing_size");
  RouterSpec table{.score = s, .experts = 2, .top_k = 1, .by_token_id = true};
  expect_refused(table, {.logits = {1, 2}, .table = {0, 1}, .token_ids = {}}, "bad_routing_size");
  expect_refused(table, {.logits = {1, 2}, .table = {0, 1}, .token_ids = {2}}, "bad_token_id");
  expect_refused(table, {.logits = {1, 2}, .table = {0, 1}, .token_ids = {-1}}, "bad_token_id");
  expect_refused(table, {.logits = {1, 2}, .table = {}, .token_ids = {0}}, "bad_token_id");

  const RouterSpec spec{.score = s, .experts = 2, .top_k = 1};
  const float logits[2] = {1, 2};
  std::int32_t ids[2];
  float weights[2];
  std::vector<std::byte> scratch(top_k_scratch_bytes(spec));
  const RouterInput input{.logits = logits, .tokens = 1};
  EXPECT_THROW(top_k(spec, input, ids, std::span(weights, 1), scratch), Error);
  EXPECT_THROW(top_k(spec, input, std::span(ids, 1), weights, scratch), Error);
  EXPECT_THROW(top_k(spec, input, std::span(ids, 1), std::span(weights, 1), std::span(scratch).subspan(1)),
               Error);
  EXPECT_NO_THROW(top_k(spec, input, std::span(ids, 1), std::span(weights, 1), scratch));
}

}  // namespace
}  // namespace sluice
