// SPDX-License-Identifier: Apache-2.0
// A packed layer: what run gives, how it splits, who works for it, and what is refused at packing.
#include "sluice/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "routing/group.h"
#include "testing/closeness.h"
#include "testing/reference_run.h"
#include "testing/usable_backends.h"
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using small::expect_error;
using testing::CallShape;
using testing::draw_call;
using testing::draw_weights;
using testing::Numbers;

class LayerTest : public ::testing::Test {
 protected:
  Layer layer(LayerOptions options = {}) const {
    return Layer(small::plan_for(spec_), weights_, std::move(options));
  }

  const LayerSpec spec_ = small::spec();
  const LayerWeights weights_ = draw_weights(spec_, Numbers::noisy, 1);
  const testing::DrawnCall drawn_ = draw_call(spec_, Numbers::noisy, {.tokens = 13}, 2);
};

testing::Closeness closeness_to(const std::vector<double>& want, const std::vector<double>& magnitude,
                                const std::vector<float>& got) {
  return testing::closeness({.got = got, .want = want, .magnitude = magnitude, .width = 96});
}

TEST_F(LayerTest, ComputesWhatTheDefinitionSays) {
  const small::Outputs out = small::run(layer(), drawn_);
  const testing::ReferenceResult want =
      testing::reference_run({.spec = spec_,
                              .weights = weights_,
                              .hidden = drawn_.hidden,
                              .routing = {out.topk_ids.data(), out.topk_weights.data(), 13, 3}});
  const auto experts = closeness_to(want.experts_out, want.experts_magnitude, out.experts_out);
  const auto block = closeness_to(want.block_out, want.block_magnitude, out.block_out);
  EXPECT_TRUE(experts.ok()) << experts.str();
  EXPECT_TRUE(block.ok()) << block.str();
  EXPECT_NE(out.experts_out, out.block_out) << "the shared expert adds nothing";
  for (std::size_t token = 0; token < 13; ++token) {
    double sum = 0;
    for (std::size_t k = 0; k < 3; ++k) sum += out.topk_weights[3 * token + k];
    EXPECT_NEAR(sum, 1.5, 1e-6);
  }
}

TEST_F(LayerTest, GivenLogitsAndGivenRoutingLeadToTheSame) {
  const Layer subject = layer();
  const small::Outputs own = small::run(subject, drawn_);
  std::vector<std::byte> workspace(subject.workspace_bytes(13));

  small::Outputs given(spec_, 13);
  LayerCall call = small::call_of(drawn_, given, workspace);
  call.routing = {own.topk_ids.data(), own.topk_weights.data(), 13, 3};
  subject.run(call);
  EXPECT_EQ(given, own);

  // Logits that select otherwise select otherwise.
  std::vector<float> logits(13 * 8);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 8) * 100;
  small::Outputs from_logits(spec_, 13);
  call = small::call_of(drawn_, from_logits, workspace);
  call.router_logits = logits;
  subject.run(call);
  EXPECT_NE(from_logits.topk_ids, own.topk_ids);
}

TEST_F(LayerTest, OutputsAreOptional) {
  const Layer subject = layer();
  const small::Outputs all = small::run(subject, drawn_);
  std::vector<std::byte> workspace(subject.workspace_bytes(13));
  for (const int wanted : {0, 1, 2, 3}) {
    small::Outputs out(spec_, 13);
    LayerCall call = small::call_of(drawn_, out, workspace);
    if (wanted != 0) call.experts_out = nullptr;
    if (wanted != 1) call.block_out = nullptr;
    if (wanted != 2) call.topk_ids = nullptr;
    if (wanted != 3) call.topk_weights = nullptr;
    subject.run(call);
    EXPECT_TRUE(wanted != 0 || out.experts_out == all.experts_out);
    EXPECT_TRUE(wanted != 1 || out.block_out == all.block_out);
    EXPECT_TRUE(wanted != 2 || out.topk_ids == all.topk_ids);
    EXPECT_TRUE(wanted != 3 || out.topk_weights == all.topk_weights);
  }
}

TEST_F(LayerTest, ASmallerWorkspaceSplitsTheTokens) {
  const Layer subject = layer();
  const small::Outputs whole = small::run(subject, drawn_);
  for (const int at_once : {1, 2, 5, 12, 13, 14})
    EXPECT_EQ(small::run(subject, drawn_, at_once), whole) << at_once;
}

TEST_F(LayerTest, WorkspaceGrowsWithTheTokensAndMayLieAnywhere) {
  const Layer subject = layer();
  std::size_t previous = 0;
  for (int tokens = 0; tokens < 40; ++tokens) {
    EXPECT_GE(subject.workspace_bytes(tokens), previous);
    previous = subject.workspace_bytes(tokens);
  }
  const small::Outputs whole = small::run(subject, drawn_);
  const std::size_t bytes = subject.workspace_bytes(13);
  std::vector<std::byte> memory(bytes + 128);
  for (const std::size_t offset : {1u, 17u, 63u, 64u}) {
    small::Outputs out(spec_, 13);
    subject.run(small::call_of(drawn_, out, std::span(memory).subspan(offset, bytes)));
    EXPECT_EQ(out, whole) << offset;
  }
}

/// The words that the run left alone are those outside the workspace.
TEST_F(LayerTest, StaysWithinTheWorkspace) {
  const Layer subject = layer();
  const std::size_t bytes = subject.workspace_bytes(13);
  std::vector<std::byte> memory(bytes + 256, std::byte{0xAB});
  small::Outputs out(spec_, 13);
  subject.run(small::call_of(drawn_, out, std::span(memory).subspan(128, bytes)));
  const auto untouched = [](std::byte value) { return value == std::byte{0xAB}; };
  EXPECT_TRUE(std::all_of(memory.begin(), memory.begin() + 128, untouched));
  EXPECT_TRUE(std::all_of(memory.end() - 128, memory.end(), untouched));
}

TEST_F(LayerTest, TooSmallAWorkspaceIsRefusedWithTheNumbers) {
  const Layer subject = layer();
  small::Outputs out(spec_, 13);
  std::vector<std::byte> workspace(subject.workspace_bytes(1) - 1);
  expect_error("workspace_too_small", [&] { subject.run(small::call_of(drawn_, out, workspace)); });
  expect_error("workspace_too_small", [&] { subject.run(small::call_of(drawn_, out, {})); });
}

TEST_F(LayerTest, NoTokensNeedNothing) {
  const Layer subject = layer();
  EXPECT_NO_THROW(subject.run({.hidden = {nullptr, DType::bf16, 0, 96, 0}}));
}

TEST_F(LayerTest, RowsMayBeStridedAndOfThreeTypes) {
  const Layer subject = layer();
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const testing::DrawnCall dense = draw_call(spec_, Numbers::exact, {.tokens = 5, .dtype = dtype}, 7);
    testing::DrawnCall strided = dense;
    const std::size_t row = static_cast<std::size_t>(dense.hidden.row_stride), apart = row + 24;
    strided.rows.assign(5 * apart, std::byte{0xFF});
    for (std::size_t r = 0; r < 5; ++r)
      std::copy_n(dense.rows.data() + r * row, row, strided.rows.data() + r * apart);
    strided.hidden.data = strided.rows.data();
    strided.hidden.row_stride = static_cast<std::ptrdiff_t>(apart);
    EXPECT_EQ(small::run(subject, strided), small::run(subject, dense)) << name(dtype);
  }
}

/// NaN in, NaN out, for that token alone; nothing throws.
TEST_F(LayerTest, ValuesAreNeverRefused) {
  const Layer subject = layer();
  testing::DrawnCall bad = draw_call(spec_, Numbers::noisy, {.tokens = 3, .dtype = DType::f32}, 2);
  small::Outputs clean = small::run(subject, bad);
  reinterpret_cast<float*>(bad.rows.data())[96 + 5] = std::nanf("");
  small::Outputs out(spec_, 3);
  std::vector<std::byte> workspace(subject.workspace_bytes(3));
  LayerCall call = small::call_of(bad, out, workspace);
  call.routing = {clean.topk_ids.data(), clean.topk_weights.data(), 3, 3};
  subject.run(call);
  for (std::size_t i = 0; i < out.block_out.size(); ++i) {
    const bool second = i / 96 == 1;
    EXPECT_EQ(std::isnan(out.block_out[i]), second) << i;
    EXPECT_EQ(std::isnan(out.experts_out[i]), second) << i;
  }
  EXPECT_NO_THROW(small::run(subject, bad)) << "its own router on NaN";
}

TEST_F(LayerTest, TwoThreadsOneLayerAndTwoLayers) {
  const Layer first = layer(), second = layer();
  const small::Outputs want = small::run(first, drawn_);
  std::atomic<int> wrong = 0;
  const auto work = [&](const Layer& subject) {
    for (int round = 0; round < 20; ++round) wrong += small::run(subject, drawn_) != want;
  };
  std::thread a([&] { work(first); }), b([&] { work(first); }), c([&] { work(second); });
  a.join();
  b.join();
  c.join();
  EXPECT_EQ(wrong, 0);
}

/// Runs everything on the calling thread, last task first, and counts.
class Backwards : public Executor {
 public:
  int workers() const override { return 3; }
  void parallel_for(int tasks, TaskBody body) override {
    ++calls;
    for (int task = tasks - 1; task >= 0; --task) body.call(body.context, task, task % 3);
  }
  std::atomic<int> calls = 0;
};

TEST_F(LayerTest, TheCallersExecutorDoesTheWork) {
  const auto executor = std::make_shared<Backwards>();
  const Layer subject = layer({.executor = executor});
  const int after_packing = executor->calls;
  const small::Outputs out = small::run(subject, drawn_);
  EXPECT_GT(executor->calls, after_packing);
  EXPECT_EQ(out, small::run(layer(), drawn_));
}

TEST_F(LayerTest, AnyNumberOfThreadsGivesTheSame) {
  const small::Outputs one = small::run(layer({.executor = make_thread_team(1)}), drawn_);
  for (const int threads : {2, 3, 7})
    EXPECT_EQ(small::run(layer({.executor = make_thread_team(threads)}), drawn_), one) << threads;
}

TEST_F(LayerTest, SlicesOfAnExpertMapSumToTheWhole) {
  const Layer whole = layer();
  const small::Outputs want = small::run(whole, drawn_);
  std::vector<float> sum(want.experts_out.size());
  for (int slice = 0; slice < 2; ++slice) {
    LayerSpec part = spec_;
    LayerWeights weights = weights_;
    std::vector<std::int32_t> map(8, -1);
    weights.routed.clear();
    for (int id = slice; id < 8; id += 2) {
      map[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(weights.routed.size());
      weights.routed.push_back(weights_.routed[static_cast<std::size_t>(id)]);
    }
    part.routed.local_experts = 4;
    const Layer subject(small::plan_for(part), weights, {.expert_map = map});
    const small::Outputs out = small::run(subject, drawn_);
    EXPECT_EQ(out.topk_ids, want.topk_ids) << "a slice reports global ids";
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += out.experts_out[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i)
    EXPECT_NEAR(sum[i], want.experts_out[i], 1e-4 + 1e-5 * std::abs(sum[i]));
}

TEST_F(LayerTest, ExpertMapsAreChecked) {
  const auto with_map = [&](std::vector<std::int32_t> map) { layer({.expert_map = std::move(map)}); };
  expect_error("bad_expert_map", [&] { with_map({0, 1, 2}); });
  expect_error("bad_expert_map", [&] { with_map({0, 1, 2, 3, 4, 5, 6, 8}); });
  expect_error("bad_expert_map", [&] { with_map({0, 1, 2, 3, 4, 5, 6, -2}); });
  EXPECT_NO_THROW(with_map({7, 6, 5, 4, 3, 2, 1, 0}));

  LayerSpec part = spec_;
  LayerWeights weights = weights_;
  part.routed.local_experts = 2;
  weights.routed.erase(weights.routed.begin() + 2, weights.routed.end());
  expect_error("bad_expert_map", [&] { Layer(small::plan_for(part), weights); });
}

TEST_F(LayerTest, APlanWithoutChoiceIsUnsupported) {
  // The processor's, on a card.
  const Plan plan = choose({.layer = spec_, .device = known_device("h100"), .by_name = "reference"});
  try {
    const Layer never(plan, weights_);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_EQ(error.plan().verdicts.size(), plan.verdicts.size());
  }
}

TEST_F(LayerTest, AChoiceThatThisBuildDoesNotHave) {
  Plan plan = small::plan_for(spec_);
  plan.chosen = "cpu.tomorrow";
  expect_error("unknown_backend", [&] { Layer(plan, weights_); });
}

TEST_F(LayerTest, ProgressEndsWhereItSaid) {
  for (const Backend* backend : testing::usable_backends()) {
    std::int64_t last = 0, all = 0;
    const Plan plan = small::plan_for(spec_, std::string(backend->name));
    if (plan.chosen.empty()) continue;  // cuda.decode: the shared expert has another format
    const Layer subject(plan, weights_, {.progress = [&](std::int64_t done, std::int64_t total) {
                          EXPECT_GE(done, last);
                          last = done;
                          all = total;
                        }});
    EXPECT_EQ(last, all) << backend->name;
    // The reference packs nothing and says nothing.
    EXPECT_EQ(all > 0, subject.packed_bytes() > 0) << backend->name;
  }
}

/// Giving up a load is an exception like any other, also where a worker was the one to report.
TEST_F(LayerTest, ProgressMayThrow) {
  struct GivenUp {};
  for (const Backend* backend : testing::usable_backends()) {
    const Plan plan = small::plan_for(spec_, std::string(backend->name));
    if (plan.chosen.empty() || Layer(plan, weights_).packed_bytes() == 0) continue;
    const auto load = [&] {
      Layer(plan, weights_, {.executor = make_thread_team(3), .progress = [](std::int64_t, std::int64_t) {
                               throw GivenUp();
                             }});
    };
    EXPECT_THROW(load(), GivenUp) << backend->name;
  }
}

TEST_F(LayerTest, ASecondScaleThatTheFormatHasNotIsRefused) {
  ASSERT_FALSE(geometry(spec_.routed.formats.up).second_scale);
  LayerWeights weights = weights_;
  weights.routed[2].up.second_scale = 0.5f;
  expect_error("bad_weights", [&] { Layer(small::plan_for(spec_), weights); });
}

TEST_F(LayerTest, AnEditedPlanIsComparedAgain) {
  Plan plan = small::plan_for(spec_);
  plan.request.tokens = {1, 2};
  plan.request.by_name = "cpu.avx2";
  EXPECT_NO_THROW(Layer(plan, weights_)) << "what was asked for then does not matter now";
  plan.request.layer.routed.intermediate = 96;
  expect_error("bad_weights", [&] { Layer(plan, weights_); });
}

TEST_F(LayerTest, NanThatTheRouterSeesSelectsNothing) {
  const Layer subject = layer();
  std::vector<float> rows(static_cast<std::size_t>(spec_.routed.hidden), std::nanf(""));
  small::Outputs out(spec_, 1);
  std::vector<std::byte> workspace(subject.workspace_bytes(1));
  LayerCall call = small::call_of(drawn_, out, workspace);
  call.hidden = {.data = reinterpret_cast<const std::byte*>(rows.data()),
                 .dtype = DType::f32,
                 .rows = 1,
                 .width = spec_.routed.hidden,
                 .row_stride = spec_.routed.hidden * std::ptrdiff_t{sizeof(float)}};
  subject.run(call);
  for (const std::int32_t id : out.topk_ids) EXPECT_EQ(id, -1);
  for (const float y : out.experts_out) EXPECT_EQ(y, 0.0f);
  for (const float y : out.block_out) EXPECT_TRUE(std::isnan(y)) << "the shared expert sees every token";
}

/// Two terabytes of weights behind two megabytes of memory: rows that all lie at the same place.
TEST(LayerMemory, WhatDoesNotFitIsRefusedBeforeItIsPacked) {
  const Format bf16 = Formats::of<format::Bf16>();
  constexpr int kWide = 1 << 19;
  const LayerSpec spec{.routed = {.hidden = kWide,
                                  .intermediate = kWide,
                                  .experts = 1,
                                  .local_experts = 1,
                                  .top_k = 1,
                                  .formats = {bf16, bf16, bf16},
                                  .activation = Activations::of<activation::Silu>()},
                       .router = {.score = *Score::parse("softmax"), .experts = 1, .top_k = 1}};
  const std::vector<std::byte> row(2 * kWide);
  const WeightMatrix matrix{
      .format = bf16, .rows = kWide, .cols = kWide, .codes = row.data(), .row_stride = 0, .col_stride = 2};
  LayerWeights weights;
  weights.routed.push_back({.gate = matrix, .up = matrix, .down = matrix});
  const Plan plan = choose({.layer = spec, .device = detect()});
  if (plan.chosen.empty()) GTEST_SKIP() << "no packing backend for this machine in this build";
  try {
    const Layer never(plan, weights);
    FAIL() << "packed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("GB"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sluice
