// SPDX-License-Identifier: Apache-2.0
// Live update: what a backend declares as "update" gives, after any updates, the bits of a layer that was
// packed from the weights it now has. Swapped experts permute the output, and what is refused changes
// nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <utility>

#include "core/bits.h"
#include "format/integers.h"
#include "format/scales.h"
#include "sluice/error.h"
#include "testing/device_for.h"
#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"

namespace sluice::conformance {
namespace {

using testing::Numbers;

class UpdateTest : public ::testing::TestWithParam<const Backend*> {
 protected:
  void SetUp() override {
    if (!backend().can.calls.has(CallModes::of<call::Update>())) GTEST_SKIP() << "declares no update";
    ASSERT_NE(backend().update, nullptr);
  }
  const Backend& backend() const { return *GetParam(); }

  Layer layer(const LayerSpec& spec, const LayerWeights& weights) const {
    return Layer(choose({.layer = spec,
                         .device = testing::device_for(backend().name),
                         .tokens = {1},
                         .by_name = std::string(backend().name),
                         .calls = {CallModes::of<call::Update>()}}),
                 weights, {.executor = make_thread_team(2)});
  }

  /// Every format with all features that apply, in turn with every activation; no expert map.
  std::vector<Case> cases() const {
    std::vector<Case> made;
    const FeatureSet features = backend().can.features.minus(
        Features::set<feature::ExpertMap, feature::Lora, feature::MixedFormats, feature::MixedGateUp>());
    const std::vector<Format> formats = members(backend().can.weights);
    const std::vector<Activation> activations = members(backend().can.activations);
    for (std::size_t i = 0; i < formats.size(); ++i) {
      const Activation activation = activations[i % activations.size()];
      made.push_back(make_case(formats[i], formats[i], activation,
                               applicable(applicable(features, activation), formats[i]),
                               {.hidden = 64, .intermediate = 96}));
      made.back().spec.router.bias = true;
      // Of "softmax" a swap may move the last bit: it sums over all experts, in their order.
      made.back().spec.router.score = *Score::parse("sigmoid");
    }
    return made;
  }
};

struct Result {
  std::vector<float> experts_out, block_out;
  std::vector<std::int32_t> ids;
};

/// By the layer's own router.
Result run(const Layer& layer, const testing::DrawnCall& call) {
  const LayerSpec& spec = layer.plan().request.layer;
  const auto tokens = static_cast<std::size_t>(call.hidden.rows);
  Result out;
  out.experts_out.resize(tokens * spec.hidden());
  out.block_out.resize(out.experts_out.size());
  out.ids.resize(tokens * spec.routed.top_k);
  std::vector<std::byte> workspace(layer.workspace_bytes(call.hidden.rows));
  layer.run({.hidden = call.hidden,
             .experts_out = out.experts_out.data(),
             .block_out = out.block_out.data(),
             .topk_ids = out.ids.data(),
             .workspace = workspace});
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same(const Result& got, const Result& want, const std::string& name) {
  EXPECT_TRUE(same_bits(got.experts_out, want.experts_out)) << name;
  EXPECT_TRUE(same_bits(got.block_out, want.block_out)) << name;
  EXPECT_EQ(got.ids, want.ids) << name;
}

void update_all(Layer& layer, const LayerWeights& weights) {
  for (std::size_t e = 0; e < weights.routed.size(); ++e)
    layer.update_expert(static_cast<int>(e), weights.routed[e], weights.owner);
  if (!weights.shared.empty())
    layer.update_shared(weights.shared.front(), weights.shared_gate, weights.owner);
  layer.update_router(weights.router);
  if (weights.latent) layer.update_latent(*weights.latent);
}

format::Encoded as_f32(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t r = 0; r < matrix.rows; ++r) decode_row(matrix, r, values.data() + r * matrix.cols);
  return encode(Formats::of<format::F32>(), values.data(), matrix.rows, matrix.cols);
}

/// Report B94: A, then B, then A again.
TEST_P(UpdateTest, AnUpdateIsAPackingAnew) {
  for (const Case& made : cases()) {
    const LayerWeights a = draw_weights(made.spec, Numbers::noisy, 1),
                       b = draw_weights(made.spec, Numbers::noisy, 2);
    const testing::DrawnCall call = draw_call(made.spec, Numbers::noisy, {.tokens = 5}, 3);
    Layer changing = layer(made.spec, a);
    const std::int64_t bytes = changing.packed_bytes();
    const Result before = run(changing, call), of_b = run(layer(made.spec, b), call);
    ASSERT_FALSE(same_bits(before.block_out, of_b.block_out)) << made.name;
    update_all(changing, b);
    expect_same(run(changing, call), of_b, made.name);
    update_all(changing, a);
    expect_same(run(changing, call), before, made.name);
    EXPECT_EQ(changing.packed_bytes(), bytes);
  }
}

TEST_P(UpdateTest, OneExpertAlone) {
  for (const Case& made : cases()) {
    LayerWeights mixed = draw_weights(made.spec, Numbers::noisy, 1);
    const LayerWeights other = draw_weights(made.spec, Numbers::noisy, 2);
    const testing::DrawnCall call = draw_call(made.spec, Numbers::noisy, {.tokens = 9}, 3);
    Layer changing = layer(made.spec, mixed);
    changing.update_expert(4, other.routed[4], other.owner);
    mixed.routed[4] = other.routed[4];
    expect_same(run(changing, call), run(layer(made.spec, mixed), call), made.name);
  }
}

/// A router whose rows are float32 and its own, so that they can be swapped.
struct OwnRouter {
  OwnRouter(const LayerSpec& spec, const RouterWeights& of) : weights(of) {
    const auto hidden = static_cast<std::size_t>(spec.hidden());
    const auto experts = static_cast<std::size_t>(spec.router.experts);
    rows.resize(experts * hidden);
    for (std::size_t e = 0; e < experts; ++e)
      decode_row(*of.weight, static_cast<std::int64_t>(e), rows.data() + e * hidden);
    bias.resize(experts, 0.25f);
    bias[3] = -0.5f;
    WeightMatrix matrix{
        .format = Formats::of<format::F32>(), .rows = spec.router.experts, .cols = spec.hidden()};
    matrix.codes = reinterpret_cast<const std::byte*>(rows.data());
    matrix.row_stride = 4 * spec.hidden();
    matrix.col_stride = 4;
    weights.weight = matrix;
    weights.bias = {reinterpret_cast<const std::byte*>(bias.data()), DType::f32, spec.router.experts, 4};
  }

  void swap(std::size_t a, std::size_t b, std::size_t hidden) {
    for (std::size_t k = 0; k < hidden; ++k) std::swap(rows[a * hidden + k], rows[b * hidden + k]);
    std::swap(bias[a], bias[b]);
  }

  RouterWeights weights;
  std::vector<float> rows, bias;
};

/// Report B45: experts 1 and 4 change places, with their rows of the router.
TEST_P(UpdateTest, SwappedExpertsPermuteTheOutput) {
  for (const Case& made : cases()) {
    LayerWeights weights = draw_weights(made.spec, Numbers::noisy, 1);
    OwnRouter router(made.spec, weights.router);
    weights.router = router.weights;
    const testing::DrawnCall call = draw_call(made.spec, Numbers::noisy, {.tokens = 20}, 3);
    Layer changing = layer(made.spec, weights);
    Result before = run(changing, call);
    changing.update_expert(1, weights.routed[4], weights.owner);
    changing.update_expert(4, weights.routed[1], weights.owner);
    router.swap(1, 4, static_cast<std::size_t>(made.spec.hidden()));
    changing.update_router(router.weights);
    for (std::int32_t& id : before.ids) id = id == 1 ? 4 : id == 4 ? 1 : id;
    expect_same(run(changing, call), before, made.name);
  }
}

TEST_P(UpdateTest, WhatIsRefusedChangesNothing) {
  const Format format = members(backend().can.weights).front();
  FeatureSet features = backend().can.features.minus(Features::set<feature::ExpertMap, feature::Lora>());
  features = applicable(applicable(features, members(backend().can.activations).front()), format);
  const Case made = make_case(format, format, members(backend().can.activations).front(), features);
  const LayerWeights a = draw_weights(made.spec, Numbers::noisy, 1),
                     b = draw_weights(made.spec, Numbers::noisy, 2);
  const testing::DrawnCall call = draw_call(made.spec, Numbers::noisy, {.tokens = 5}, 3);
  Layer changing = layer(made.spec, a);
  const Result before = run(changing, call);
  const auto refused = [&](auto update, const char* why) {
    try {
      update();
      ADD_FAILURE() << why << ": no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.info().code, "bad_weights") << why;
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
    expect_same(run(changing, call), before, why);
  };
  const auto refused_expert = [&](auto edit, const char* why) {
    ExpertWeights expert = b.routed[1];
    edit(expert);
    refused([&] { changing.update_expert(1, expert, b.owner); }, why);
  };
  refused_expert([](ExpertWeights& expert) { expert.up.rows -= 1; }, "the spec says");
  refused_expert([](ExpertWeights& expert) { expert.down.format = Formats::of<format::Fp8Tensor>(); },
                 "fp8_tensor");
  refused_expert(
      [](ExpertWeights& expert) { expert.up.second_scale = std::numeric_limits<float>::quiet_NaN(); },
      "a second scale of nan");
  refused_expert([](ExpertWeights& expert) { expert.up.second_scale = -1; }, "a second scale of -1");
  refused_expert([](ExpertWeights& expert) { expert.down.codes = nullptr; }, "no data");
  refused([&] { changing.update_expert(6, b.routed[0], b.owner); }, "no expert 6");
  refused([&] { changing.update_expert(-1, b.routed[0], b.owner); }, "no expert -1");
  if (made.spec.shared) {
    ExpertWeights shared = b.shared[0];
    refused([&] { changing.update_shared(shared, {}, b.owner); }, "missing");
    shared.down.cols += 32;
    refused([&] { changing.update_shared(shared, b.shared_gate, b.owner); }, "the spec says");
  }
  RouterWeights router = b.router;
  router.weight->cols += 1;
  refused([&] { changing.update_router(router); }, "the spec says");
  refused([&] { changing.update_router({}); }, "the parts that the layer's router has");
  if (made.spec.latent) {
    LatentWeights latent = *b.latent;
    latent.in.rows += 1;
    refused([&] { changing.update_latent(latent); }, "the spec says");
    latent = *b.latent;
    latent.norm = {};
    refused([&] { changing.update_latent(latent); }, "missing");
    latent = *b.latent;
    const format::Encoded wide = as_f32(latent.in);
    latent.in = wide.matrix;
    refused([&] { changing.update_latent(latent); }, "bf16 projections are kept as such");
  } else {
    try {
      changing.update_latent({.in = b.routed[0].up, .out = b.routed[0].down});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.info().code, "no_latent");
    }
  }
}

TEST_P(UpdateTest, AnUpdateThatWasNotPlannedIsRefused) {
  const Case made = make_case(members(backend().can.weights).front(), members(backend().can.weights).front(),
                              members(backend().can.activations).front(), {});
  const Problem problem(made, Numbers::noisy, {.tokens = 1});
  Layer layer = problem.layer(backend());
  try {
    layer.update_expert(0, problem.weights().routed[1]);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.info().code, "not_planned");
  }
}

/// An owner is kept for as long as the backend may read the views, and not longer than its experts are there.
TEST_P(UpdateTest, OwnersGoWithTheirExperts) {
  const Case made = make_case(members(backend().can.weights).front(), members(backend().can.weights).front(),
                              members(backend().can.activations).front(), {});
  const testing::DrawnCall call = draw_call(made.spec, Numbers::noisy, {.tokens = 4}, 3);
  LayerWeights a = draw_weights(made.spec, Numbers::noisy, 1);
  Layer changing = layer(made.spec, a);
  const std::weak_ptr<const void> first = a.owner;
  a = {};
  LayerWeights b = draw_weights(made.spec, Numbers::noisy, 2);
  const Result want = run(layer(made.spec, b), call);
  const std::weak_ptr<const void> second = b.owner;
  update_all(changing, b);
  EXPECT_TRUE(first.expired());
  b = {};
  // Of freed memory, if the layer read it in place and did not keep the owner: ASan sees it.
  expect_same(run(changing, call), want, made.name);
  const LayerWeights c = draw_weights(made.spec, Numbers::noisy, 4);
  update_all(changing, c);
  EXPECT_TRUE(second.expired());
}

/// The matrix with its scales as float32, in `scales`.
WeightMatrix with_wide_scales(WeightMatrix matrix, std::vector<float>& scales) {
  const std::int64_t groups = format::groups_of_row(matrix);
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t g = 0; g < groups; ++g)
      scales.push_back(format::read_number(
          matrix.scales.dtype,
          matrix.scales.data + r * matrix.scales.row_stride + g * matrix.scales.col_stride));
  matrix.scales = {reinterpret_cast<const std::byte*>(scales.data()), DType::f32, 4 * groups, 4};
  return matrix;
}

/// Backends may settle the type of scales when they pack: then another type is refused, and the layer is as
/// it was. Those that do not take it.
TEST_P(UpdateTest, ScalesOfAnotherTypeAreTakenOrRefused) {
  const Format format = Formats::of<format::Int4>();
  if (!backend().can.weights.has(format)) GTEST_SKIP() << "declares no int4";
  const Case made = make_case(format, format, Activations::of<activation::Silu>(), {});
  const LayerWeights weights = draw_weights(made.spec, Numbers::noisy, 1);
  LayerWeights changed = weights;
  const LayerWeights others = draw_weights(made.spec, Numbers::noisy, 2);
  std::vector<float> gate, up, down;
  changed.routed[0] = others.routed[0];
  changed.routed[0].gate = with_wide_scales(*others.routed[0].gate, gate);
  changed.routed[0].up = with_wide_scales(others.routed[0].up, up);
  changed.routed[0].down = with_wide_scales(others.routed[0].down, down);
  const testing::DrawnCall call = draw_call(made.spec, Numbers::noisy, {.tokens = 6}, 3);
  Layer changing = layer(made.spec, weights);
  const Result before = run(changing, call), wanted = run(layer(made.spec, changed), call);
  ASSERT_FALSE(same_bits(before.block_out, wanted.block_out));
  bool taken = true;
  try {
    changing.update_expert(0, changed.routed[0], others.owner);
  } catch (const Error& error) {
    taken = false;
    EXPECT_EQ(error.info().code, "update_does_not_fit") << error.what();
  }
  expect_same(run(changing, call), taken ? wanted : before, taken ? "taken" : "refused");
  EXPECT_EQ(taken, testing::is_reference(backend())) << "processors pack 16-bit scales as such";
}

INSTANTIATE_TEST_SUITE_P(Backends, UpdateTest, ::testing::ValuesIn(testing::usable_backends()), test_name);

}  // namespace
}  // namespace sluice::conformance
