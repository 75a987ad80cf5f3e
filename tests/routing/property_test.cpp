// SPDX-License-Identifier: Apache-2.0
// Random routers and logits against a naive definition in double, by sorting everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/routing/route.h"

namespace sluice {
namespace {

using testing_routing::Call;
using testing_routing::route;
using testing_routing::Routed;
using testing_routing::score;

struct Expected {
  std::vector<int> ids;
  std::vector<double> weights;
};

std::vector<double> softmax(std::vector<double> x) {
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v);
  for (double& v : x) v /= sum;
  return x;
}

std::vector<double> scores_of(std::string_view name, const std::vector<double>& logits) {
  if (name == "softmax") return softmax(logits);
  std::vector<double> out = logits;
  for (double& x : out) {
    if (name == "sigmoid") x = 1 / (1 + std::exp(-x));
    if (name == "sqrt_softplus") x = std::sqrt(std::log1p(std::exp(x)));
  }
  return out;
}

/// Experts by falling score, lowest id first.
std::vector<int> ranked(const std::vector<double>& scores) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  return order;
}

/// Which groups' experts may be selected.
std::vector<bool> kept_groups(const RouterSpec& spec, const std::vector<double>& selection) {
  const int size = spec.experts / spec.groups;
  std::vector<double> group_scores;
  for (int g = 0; g < spec.groups; ++g) {
    std::vector<double> members(selection.begin() + g * size, selection.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    const bool two = spec.group_score == GroupScore::two_best && size > 1;
    group_scores.push_back(members[0] + (two ? members[1] : 0));
  }
  std::vector<bool> kept(static_cast<std::size_t>(spec.groups));
  const std::vector<int> order = ranked(group_scores);
  for (int i = 0; i < spec.groups_kept; ++i)
    kept[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = true;
  return kept;
}

Expected define(const RouterSpec& spec, const std::vector<double>& logits, const Call& call) {
  const std::vector<float>& bias = call.selection_bias;
  const std::vector<double> scores = scores_of(spec.score.str(), logits);
  std::vector<double> selection = scores;
  for (std::size_t e = 0; e < bias.size(); ++e) selection[e] += bias[e];
  const std::vector<bool> kept = kept_groups(spec, selection);
  Expected want;
  for (const int e : ranked(selection)) {
    const auto group = static_cast<std::size_t>(e / (spec.experts / spec.groups));
    if (kept[group] && static_cast<int>(want.ids.size()) < spec.top_k) want.ids.push_back(e);
  }
  for (const int e : want.ids) want.weights.push_back(scores[static_cast<std::size_t>(e)]);
  if (spec.score.str() == "softmax_selected") want.weights = softmax(want.weights);
  if (spec.score.str() == "sigmoid_selected") want.weights = scores_of("sigmoid", want.weights);
  const double sum = std::accumulate(want.weights.begin(), want.weights.end(), 0.0);
  for (double& w : want.weights) w = w / (spec.renormalise ? sum : 1.0) * spec.scale;
  for (std::size_t i = 0; spec.expert_scale && i < want.ids.size(); ++i)
    want.weights[i] *= call.expert_scale[static_cast<std::size_t>(want.ids[i])];
  want.ids.resize(static_cast<std::size_t>(spec.top_k), -1);
  want.weights.resize(static_cast<std::size_t>(spec.top_k), 0);
  return want;
}

RouterSpec draw_router(std::mt19937& draw, std::string_view name) {
  const auto from = [&](std::initializer_list<int> list) { return list.begin()[draw() % list.size()]; };
  RouterSpec spec{.score = score(name)};
  spec.groups = from({1, 1, 2, 4, 8});
  spec.experts = spec.groups * from({1, 3, 8, 32, 128});
  spec.groups_kept = 1 + static_cast<int>(draw() % static_cast<unsigned>(spec.groups));
  spec.top_k = 1 + static_cast<int>(draw() % static_cast<unsigned>(std::min(spec.experts, 12)));
  if (draw() % 8 == 0) spec.top_k = spec.experts;
  testing_routing::draw_rules(draw, spec);
  return spec;
}

/// Multiples of 1/8, shuffled: no two are close enough for float32 to order them otherwise than double.
std::vector<float> draw_logits(std::mt19937& draw, int experts) {
  std::vector<float> logits(static_cast<std::size_t>(experts));
  for (std::size_t e = 0; e < logits.size(); ++e)
    logits[e] = (static_cast<float>(e) - static_cast<float>(experts) / 2) *
                std::min(0.125f, 12.0f / static_cast<float>(experts));
  std::shuffle(logits.begin(), logits.end(), draw);
  return logits;
}

TEST(TopK, EqualsItsDefinitionOnRandomRouters) {
  std::mt19937 draw(20261);
  for (int round = 0; round < 120; ++round)
    for (const std::string_view name : Score::all()) {
      const RouterSpec spec = draw_router(draw, name);
      Call call{.logits = draw_logits(draw, spec.experts)};
      if (spec.selection_bias) {
        std::uniform_real_distribution<float> uniform(-0.5f, 0.5f);
        for (int e = 0; e < spec.experts; ++e) call.selection_bias.push_back(uniform(draw));
      }
      for (int e = 0; spec.expert_scale && e < spec.experts; ++e)
        call.expert_scale.push_back(0.25f * static_cast<float>(1 + draw() % 12));
      const Routed got = route(spec, call);
      // Logits up to 12 apart lose up to 24 roundings in exp; a sum has one a term.
      const double relative = (32 + spec.experts) * 0x1p-24;
      const Expected want = define(spec, {call.logits.begin(), call.logits.end()}, call);
      for (std::size_t i = 0; i < want.ids.size(); ++i) {
        ASSERT_EQ(got.ids[i], want.ids[i]) << name << " round " << round << " slot " << i;
        ASSERT_NEAR(got.weights[i], want.weights[i], relative * want.weights[i]) << name;
      }
    }
}

TEST(TopK, TokensDoNotMeetEachOther) {
  std::mt19937 draw(7);
  for (const std::string_view name : Score::all()) {
    const RouterSpec spec = draw_router(draw, name);
    Call all;
    if (spec.selection_bias) all.selection_bias.assign(static_cast<std::size_t>(spec.experts), 0.25f);
    if (spec.expert_scale) all.expert_scale.assign(static_cast<std::size_t>(spec.experts), 1.5f);
    std::vector<std::int32_t> ids;
    std::vector<float> weights;
    for (int token = 0; token < 9; ++token) {
      Call one = all;
      one.logits = draw_logits(draw, spec.experts);
      const Routed got = route(spec, one);
      ids.insert(ids.end(), got.ids.begin(), got.ids.end());
      weights.insert(weights.end(), got.weights.begin(), got.weights.end());
      all.logits.insert(all.logits.end(), one.logits.begin(), one.logits.end());
    }
    const Routed got = route(spec, all);
    EXPECT_EQ(got.ids, ids) << name;
    EXPECT_EQ(got.weights, weights) << name;
  }
}

}  // namespace
}  // namespace sluice
