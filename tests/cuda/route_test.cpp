// SPDX-License-Identifier: Apache-2.0
// Routing on a card has the processor's bits: ids and weights of every kind of router, ties, NaN and
// infinities among them, and the router's linear layer.
#include "experts/cuda/routing/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/bits.h"
#include "engine/router.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/formats.h"
#include "tests/cuda/on_card.h"
#include "tests/routing/route.h"

namespace sluice {
namespace {

using on_card::Array;
using on_card::same_bits;
using testing_routing::Call;
using testing_routing::Routed;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class RouteOnCard : public on_card::Test {};

/// Null for an empty one.
template <class T>
const T* pointer(const Array<T>& array) {
  return array.span().empty() ? nullptr : array.get();
}

Routed route_on_card(const RouterSpec& spec, const Call& call) {
  const std::size_t tokens = call.logits.size() / static_cast<std::size_t>(spec.experts);
  const std::size_t slots = tokens * static_cast<std::size_t>(spec.top_k);
  const Array<float> logits(call.logits), bias(call.selection_bias), scale(call.expert_scale);
  const Array<std::int32_t> table(call.table), ids(slots);
  const Array<std::int64_t> token_ids(call.token_ids);
  const Array<float> weights(slots);
  on_card::check(cuda::route({.spec = spec,
                              .tokens = static_cast<int>(tokens),
                              .logits = logits.get(),
                              .selection_bias = pointer(bias),
                              .expert_scale = pointer(scale),
                              .table = pointer(table),
                              .vocabulary = std::ssize(call.table) / spec.top_k,
                              .token_ids = pointer(token_ids),
                              .ids = ids.get(),
                              .weights = weights.get()},
                             nullptr));
  on_card::check(cudaDeviceSynchronize());
  return {ids.read(), weights.read()};
}

void expect_same(const RouterSpec& spec, const Call& call, const std::string& what) {
  const Routed want = testing_routing::route(spec, call), got = route_on_card(spec, call);
  EXPECT_EQ(got.ids, want.ids) << what;
  EXPECT_TRUE(same_bits(got.weights, want.weights)) << what;
}

RouterSpec draw_router(std::mt19937& draw, std::string_view name) {
  const auto from = [&](std::initializer_list<int> list) { return list.begin()[draw() % list.size()]; };
  RouterSpec spec{.score = testing_routing::score(name)};
  spec.groups = from({1, 1, 1, 2, 8, 16});
  spec.experts = spec.groups * from({1, 3, 8, 32, 64});
  if (draw() % 6 == 0) spec.experts = 1024;
  spec.groups_kept = 1 + static_cast<int>(draw() % static_cast<unsigned>(spec.groups));
  spec.top_k = 1 + static_cast<int>(draw() % static_cast<unsigned>(std::min(spec.experts, 32)));
  testing_routing::draw_rules(draw, spec);
  return spec;
}

/// Any numbers; of a quarter of the tokens few different ones, so that there are ties; of a quarter some NaN
/// and infinities.
Call draw_call(std::mt19937& draw, const RouterSpec& spec, int tokens) {
  std::normal_distribution<float> normal(0, 4);
  Call call;
  for (int t = 0; t < tokens; ++t)
    for (int e = 0; e < spec.experts; ++e) {
      float logit = normal(draw);
      if (t % 4 == 1) logit = std::round(logit / 3);
      if (t % 4 == 2 && draw() % 3 == 0)
        logit = std::array{std::nanf(""), kInfinity, -kInfinity, -0.0f, 0.0f, 1e30f, -200.0f}[draw() % 7];
      call.logits.push_back(logit);
    }
  for (int e = 0; spec.selection_bias && e < spec.experts; ++e)
    call.selection_bias.push_back(0.25f * std::round(normal(draw)));
  for (int e = 0; spec.expert_scale && e < spec.experts; ++e)
    call.expert_scale.push_back(0.25f * static_cast<float>(1 + draw() % 12));
  return call;
}

std::string words(const RouterSpec& s) {
  return std::string(s.score.str()) + " " + std::to_string(s.experts) + " experts, top " +
         std::to_string(s.top_k) + ", " + std::to_string(s.groups_kept) + " of " + std::to_string(s.groups) +
         " groups";
}

TEST_F(RouteOnCard, RandomRouters) {
  std::mt19937 draw(2026);
  for (int round = 0; round < 40; ++round)
    for (const std::string_view name : Score::all()) {
      const RouterSpec spec = draw_router(draw, name);
      expect_same(spec, draw_call(draw, spec, 9), words(spec));
    }
}

TEST_F(RouteOnCard, TheLargestRouter) {
  std::mt19937 draw(7);
  for (const std::string_view name : Score::all())
    for (const int groups : {1, 32, 1024}) {
      RouterSpec spec{.score = testing_routing::score(name), .experts = 1024, .top_k = 32};
      spec.groups = groups;
      spec.groups_kept = std::max(1, groups / 2);
      spec.renormalise = true;
      expect_same(spec, draw_call(draw, spec, 5), words(spec));
    }
}

TEST_F(RouteOnCard, NothingToSelectAndEverythingAlike) {
  for (const std::string_view name : Score::all())
    for (const float value : {std::nanf(""), -kInfinity, kInfinity, 0.0f, -0.0f, -1000.0f})
      for (const int kept : {1, 2}) {
        RouterSpec spec{.score = testing_routing::score(name), .experts = 48, .top_k = 5, .groups = 2};
        spec.groups_kept = kept;
        spec.group_score = GroupScore::two_best;
        spec.renormalise = true;
        Call call{.logits = std::vector<float>(2 * 48, value)};
        for (int e : {60, 71, 80}) call.logits[static_cast<std::size_t>(e)] = 1.5f;
        expect_same(spec, call, words(spec) + " of " + std::to_string(value));
      }
}

TEST_F(RouteOnCard, ByTokenId) {
  std::mt19937 draw(11);
  for (const std::string_view name : Score::all()) {
    RouterSpec spec{.score = testing_routing::score(name), .experts = 40, .top_k = 6};
    spec.by_token_id = spec.renormalise = true;
    Call call = draw_call(draw, spec, 4);
    for (int i = 0; i < 10 * spec.top_k; ++i)  // some that are no experts
      call.table.push_back(static_cast<std::int32_t>(draw() % 44) - 2);
    call.token_ids = {9, 0, 3, 7};
    expect_same(spec, call, words(spec));
    // The processor refuses a token id outside its table; a card gives it no expert.
    call.token_ids = {9, 10, -1, std::int64_t{1} << 40};
    const Routed got = route_on_card(spec, call);
    for (std::size_t i = 6; i < got.ids.size(); ++i) {
      EXPECT_EQ(got.ids[i], -1);
      EXPECT_EQ(got.weights[i], 0.0f);
    }
  }
}

std::vector<std::byte> rows_of(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(bits(dtype)) / 8);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f32)
      store(bytes.data() + 4 * i, values[i]);
    else
      store(bytes.data() + 2 * i,
            dtype == DType::bf16 ? format::float_to_bf16(values[i]) : format::float_to_f16(values[i]));
  }
  return bytes;
}

TEST_F(RouteOnCard, TheLinearLayerHasTheProcessorsBits) {
  std::mt19937 draw(3);
  std::normal_distribution<float> normal;
  const auto drawn = [&](int count) {
    std::vector<float> values;
    for (int i = 0; i < count; ++i) values.push_back(normal(draw));
    return values;
  };
  const auto executor = make_thread_team(1);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const int rows : {1, 16, 17, 70})
      for (const int width : {5, 16, 2880})
        for (const int outputs : {1, 37, 128}) {
          const bool biased = outputs != 37;
          const std::vector<float> weight = drawn(outputs * width), bias = drawn(biased ? outputs : 0);
          const std::vector<std::byte> x = rows_of(dtype, drawn(rows * width));
          RowsView view{x.data(), dtype, rows, width, std::ptrdiff_t{width} * bits(dtype) / 8};
          RouterWeights weights;
          const auto* const bytes = reinterpret_cast<const std::byte*>(weight.data());
          weights.weight = WeightMatrix{.format = Formats::of<format::F32>(),
                                        .rows = outputs,
                                        .cols = width,
                                        .codes = bytes,
                                        .row_stride = std::ptrdiff_t{width} * 4,
                                        .col_stride = 4};
          if (biased)
            weights.bias = {reinterpret_cast<const std::byte*>(bias.data()), DType::f32, outputs, 4};
          RouterSpec spec{.score = testing_routing::score("softmax"), .experts = outputs, .top_k = 1};
          std::vector<float> scratch(static_cast<std::size_t>(rows * width)),
              want(static_cast<std::size_t>(rows * outputs));
          Router(spec, weights).logits(view, *executor, scratch.data(), want.data());

          const Array<std::byte> x_there(x);
          const Array<float> weight_there(weight), bias_there(bias), out(want.size());
          view.data = x_there.get();
          on_card::check(cuda::logits({.rows = view,
                                       .outputs = outputs,
                                       .weight = weight_there.get(),
                                       .bias = pointer(bias_there),
                                       .out = out.get()},
                                      nullptr));
          EXPECT_TRUE(same_bits(out.read(), want))
              << name(dtype) << ", " << rows << " x " << width << " x " << outputs;
        }
}

}  // namespace
}  // namespace sluice
