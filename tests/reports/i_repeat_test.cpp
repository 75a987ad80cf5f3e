// SPDX-License-Identifier: Apache-2.0
// Section I of the reports: determinism, replayed calls and memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "testing/drawn_layer.h"
#include "testing/synthetic.h"
#include "testing/usable_backends.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

using testing::Numbers;

Toy drawn(const LayerSpec& spec, std::uint64_t seed = 2) {
  return {.spec = spec, .weights = testing::draw_weights(spec, Numbers::noisy, seed)};
}

Toy synthetic(const LayerSpec& spec) {
  const auto team = make_thread_team(2);
  return {.spec = spec, .weights = testing::synthetic_weights(spec, 4, *team)};
}

TEST(Reports, B87_TheSameCallGivesTheSameBits) {
  const LayerSpec spec =
      spec_of(kMxfp4, kSilu, {}, {.hidden = 128, .intermediate = 64, .experts = 64, .top_k = 8});
  const Toy toy = drawn(spec);
  const Call call = draw_call(spec, 64, 3);
  for (const Backend* backend : fitting(spec)) {
    const Layer layer = layer_on(*backend, toy, 2), again = layer_on(*backend, toy, 3),
                alone = layer_on(*backend, toy, 1);
    const Output first = run(layer, call);
    for (int repeat = 0; repeat < (testing::is_reference(*backend) ? 3 : 50); ++repeat)
      ASSERT_EQ(run(layer, call), first) << backend->name << ", repeat " << repeat;
    EXPECT_EQ(run(again, call), first) << backend->name << ", another layer and 3 threads";
    EXPECT_EQ(run(alone, call), first) << backend->name << ", one thread";
  }
}

TEST(Reports, B89_WhatTheWorkspaceHeldBeforeDoesNotMatter) {
  for (const Format format : all_formats()) {
    const LayerSpec spec =
        spec_of(format, kSilu, {.limit = 4}, {.hidden = 160, .intermediate = 96, .experts = 4, .top_k = 2});
    const Toy toy = drawn(spec);
    for (const Backend* backend : fitting(spec)) {
      const Layer layer = layer_on(*backend, toy);
      for (const int tokens : {1, 7, 31, 33}) {
        const Call call = draw_call(spec, tokens, 9);
        std::vector<std::byte> workspace(layer.workspace_bytes(tokens), std::byte{0});
        const Output clean = run_in(layer, call, workspace);
        for (const int poison : {0x7F, 0xFF}) {
          std::ranges::fill(workspace, std::byte(poison));
          EXPECT_EQ(run_in(layer, call, workspace), clean)
              << backend->name << ", " << format.str() << ", " << tokens;
        }
      }
    }
  }
}

TEST(Reports, B90_RowsOfNobodyReachNoOtherRow) {
  const LayerSpec spec = spec_of(kFp8Block, kSilu, {}, {.hidden = 2880, .intermediate = 32, .experts = 4});
  const Toy toy = synthetic(spec);
  const std::vector<std::int32_t> counts{1, 3, 0, 5};
  const std::vector<float> used = draw_rows(9, 2880, 5);
  for (const Backend* backend : fitting(spec, {kBatched})) {
    const std::vector<float> clean = run_batched(*backend, toy, {counts, 6, used, 0.0f});
    EXPECT_TRUE(std::ranges::all_of(clean, [](float y) { return std::isfinite(y); })) << backend->name;
    for (int repeat = 0; repeat < 10; ++repeat)
      for (const float filler :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
        ASSERT_EQ(run_batched(*backend, toy, {counts, 6, used, filler}), clean) << backend->name;
  }
}

/// A workspace between two guards.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : memory_(bytes + 2 * kGuard, kMark) {}
  std::span<std::byte> inside() { return std::span(memory_).subspan(kGuard, memory_.size() - 2 * kGuard); }
  bool intact() const {
    const auto marked = [](std::byte b) { return b == kMark; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, marked) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), marked);
  }
  /// Bytes up to the last that was written.
  std::size_t used() {
    const std::span<std::byte> all = inside();
    std::size_t end = all.size();
    while (end > 0 && all[end - 1] == kMark) --end;
    return end;
  }

 private:
  static constexpr std::size_t kGuard = 65536;
  static constexpr std::byte kMark{0xA5};
  std::vector<std::byte> memory_;
};

TEST(Reports, B91_TheWorkspaceOfOneTokenIsEnoughForIt) {
  for (const Format format : {kInt4, kMxfp4, kNvfp4, kBf16}) {
    const LayerSpec spec =
        spec_of(format, kSilu, {}, {.hidden = 2560, .intermediate = 32, .experts = 64, .top_k = 8});
    const Toy toy = synthetic(spec);
    const Call call = draw_call(spec, 1, 5);
    const Output definition = run(*reference(), toy, call);
    for (const Backend* backend : fitting(spec))
      for (const int threads : {1, 2, 7}) {
        const Layer layer = layer_on(*backend, toy, threads);
        Guarded workspace(layer.workspace_bytes(1));
        EXPECT_LT(rel_l2(run_in(layer, call, workspace.inside()).experts, definition.experts), 2e-5)
            << backend->name;
        EXPECT_TRUE(workspace.intact()) << backend->name << ", " << threads << " threads";
        const auto less = workspace.inside().first(workspace.inside().size() - 1);
        refused([&] { run_in(layer, call, less); }, {"workspace"});
      }
  }
}

TEST(Reports, B92_TheWorkspaceIsAskedForAndACapSplitsTheCall) {
  LayerSpec spec = spec_of(kNvfp4, kSilu, {}, {.hidden = 448, .intermediate = 64, .experts = 64, .top_k = 8});
  spec.router.selection_bias = true;
  Toy toy = synthetic(spec);
  const RandomRouter router(spec, 3);
  toy.weights.router = router.weights();
  const Call call = draw_call(spec, 128, 8);
  for (const Backend* backend : fitting(spec)) {
    const Layer layer = layer_on(*backend, toy);
    std::size_t before = 0;
    for (const int tokens : {1, 128, 8192, 131072}) {
      EXPECT_GE(layer.workspace_bytes(tokens), before) << backend->name;
      before = layer.workspace_bytes(tokens);
    }
    const Output whole = run(layer, call);
    // The call that needs most: the layer's own router, and nothing but the sum wanted.
    Guarded workspace(layer.workspace_bytes(128));
    std::vector<float> sum(call.hidden.size());
    layer.run(
        {.hidden = {reinterpret_cast<const std::byte*>(call.hidden.data()), DType::f32, 128, 448, 4 * 448},
         .block_out = sum.data(),
         .workspace = workspace.inside()});
    EXPECT_TRUE(workspace.intact()) << backend->name;
    EXPECT_LE(static_cast<double>(workspace.inside().size()), 1.25 * static_cast<double>(workspace.used()))
        << backend->name;
    for (const int fits : {1, 50, 127}) {
      Guarded capped(layer.workspace_bytes(fits));
      const Output parts = run_in(layer, call, capped.inside());
      if (testing::is_batch_invariant(*backend)) {
        EXPECT_EQ(parts, whole) << backend->name << ", " << fits << " at once";
      } else {
        EXPECT_LT(rel_l2(parts.experts, whole.experts), 1e-6) << backend->name << ", " << fits << " at once";
      }
      EXPECT_TRUE(capped.intact()) << backend->name;
    }
  }
}

/// One recorded call on the same addresses, replayed with other contents, is what a new layer gives.
TEST(Reports, B93_AReplayedCallSeesItsNewInputs) {
  const LayerSpec spec =
      spec_of(kMxfp4, kSilu, {}, {.hidden = 64, .intermediate = 96, .experts = 8, .top_k = 2});
  const Toy toy = drawn(spec);
  for (const Backend* backend : fitting(spec)) {
    const Layer layer = layer_on(*backend, toy);
    Call buffers = draw_call(spec, 6, 1);
    std::vector<float> out(buffers.hidden.size());
    std::vector<std::byte> workspace(layer.workspace_bytes(6));
    const LayerCall recorded{
        .hidden = {reinterpret_cast<const std::byte*>(buffers.hidden.data()), DType::f32, 6, 64, 256},
        .routing = {buffers.ids.data(), buffers.weights.data(), 6, 2},
        .experts_out = out.data(),
        .workspace = workspace};
    std::vector<std::vector<float>> all;
    for (const std::uint64_t seed : {2, 3, 4}) {
      const Call next = draw_call(spec, 6, seed);
      std::ranges::copy(next.hidden, buffers.hidden.begin());
      std::ranges::copy(next.ids, buffers.ids.begin());
      std::ranges::copy(next.weights, buffers.weights.begin());
      layer.run(recorded);
      EXPECT_EQ(out, run(*backend, toy, next).experts) << backend->name;
      all.push_back(out);
    }
    EXPECT_NE(all[0], all[1]) << backend->name;
  }
}

TEST(Reports, B94_AnUpdateAndTheWayBackGiveTheSameBits) {
  const std::vector<CallMode> updates{CallModes::of<call::Update>()};
  for (const Format format : all_formats()) {
    const LayerSpec spec =
        spec_of(format, kSilu, {.limit = 4}, {.hidden = 256, .intermediate = 256, .experts = 4, .top_k = 2});
    const Toy a = drawn(spec, 2), b = drawn(spec, 3);
    const Call call = draw_call(spec, 5, 9);
    for (const Backend* backend : fitting(spec, updates)) {
      SCOPED_TRACE(::testing::Message() << backend->name << ", " << format.str());
      Layer layer = layer_on(*backend, a, 2, updates);
      const auto update = [&](const Toy& to) {
        for (int e = 0; e < 4; ++e)
          layer.update_expert(e, to.weights.routed[static_cast<std::size_t>(e)], to.weights.owner);
      };
      const Output before = run(layer, call);
      update(b);
      EXPECT_EQ(run(layer, call), run(layer_on(*backend, b, 2, updates), call));
      EXPECT_NE(run(layer, call).experts, before.experts);
      update(a);
      EXPECT_EQ(run(layer, call), before);
    }
  }
}

}  // namespace
}  // namespace sluice::reports
