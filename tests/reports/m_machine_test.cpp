// SPDX-License-Identifier: Apache-2.0
// Section M of the reports: processors, memory and several ranks.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "sluice/error.h"
#include "testing/draw.h"
#include "testing/drawn_layer.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof set, &set);
  return set;
}

/// Nothing is pinned, and what does not fit is an error before it is taken.
TEST(Reports, B113_MemoryIsAskedForAndNobodyIsPinned) {
  const cpu_set_t before = affinity();
  const auto team = make_thread_team(3);
  std::mutex mutex;
  int differ = 0;
  parallel_for(*team, 64, [&](int, int) {
    const cpu_set_t here = affinity();
    const std::lock_guard lock(mutex);
    differ += CPU_EQUAL(&here, &before) ? 0 : 1;
  });
  EXPECT_EQ(differ, 0);
  // 20000 experts of 96 MB each: the views are all of one, what they promise is 2 TB.
  constexpr int kExperts = 20'000;
  const LayerSpec spec =
      spec_of(kBf16, kSilu, {}, {.hidden = 4096, .intermediate = 4096, .experts = kExperts});
  const std::vector<std::byte> zeros(std::size_t{4096} * 4096 * 2);
  const WeightMatrix one{.format = kBf16,
                         .rows = 4096,
                         .cols = 4096,
                         .codes = zeros.data(),
                         .row_stride = 8192,
                         .col_stride = 2};
  LayerWeights weights;
  weights.routed.assign(kExperts, {.gate = one, .up = one, .down = one});
  int asked = 0;
  for (const Backend* backend : fitting(spec)) {
    if (backend->packed_bytes(spec.routed) == 0) continue;  // reads in place
    ++asked;
    try {
      Layer(plan_on(*backend, spec), weights);
      ADD_FAILURE() << backend->name << " packed 2 TB";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::out_of_memory) << error.what();
      EXPECT_EQ(error.info().code, "does_not_fit") << error.what();
    }
  }
  EXPECT_GE(asked, static_cast<int>(fitting(spec).size()) - 1);
}

/// Ranks as threads over one team: each step every rank gets 0, 1, 5 or 64 tokens.
TEST(Reports, B115_ARankWithoutWorkKeepsStep) {
  constexpr int kSteps = 250;
  const LayerSpec spec =
      spec_of(kMxfp4, kSilu, {}, {.hidden = 32, .intermediate = 32, .experts = 8, .top_k = 2});
  const Toy toy{.spec = spec, .weights = testing::draw_weights(spec, testing::Numbers::noisy, 6)};
  for (const Backend* backend : fitting(spec))
    for (const int ranks : {2, 5}) {
      const std::shared_ptr<Executor> team = make_thread_team(2);
      std::vector<int> steps(static_cast<std::size_t>(ranks));
      std::atomic<int> wrong = 0;
      std::barrier together(ranks);
      const Call call = draw_call(spec, 64, 4);
      std::map<int, std::vector<float>> want;  // by the number of tokens
      for (const int tokens : {0, 1, 5, 64}) {
        Call first = call;
        first.tokens = tokens;
        first.hidden.resize(static_cast<std::size_t>(tokens) * 32);
        first.ids.resize(static_cast<std::size_t>(tokens) * 2);
        first.weights.resize(first.ids.size());
        want[tokens] = tokens == 0 ? std::vector<float>() : run(*backend, toy, first).experts;
      }
      const auto rank = [&](std::size_t r) {
        const Layer layer(plan_on(*backend, spec), toy.weights, {.executor = team});
        testing::Draw draw(r + 1);
        std::vector<float> out(64 * 32);
        std::vector<std::byte> workspace(layer.workspace_bytes(64));
        for (int step = 0; step < kSteps; ++step) {
          const int sizes[] = {0, 1, 5, 64}, tokens = sizes[draw.below(4)];
          layer.run({.hidden = {reinterpret_cast<const std::byte*>(call.hidden.data()), DType::f32, tokens,
                                32, 128},
                     .routing = {call.ids.data(), call.weights.data(), tokens, 2},
                     .experts_out = out.data(),
                     .workspace = workspace});
          if (!std::equal(out.begin(), out.begin() + tokens * 32, want.at(tokens).begin())) ++wrong;
          ++steps[r];
          together.arrive_and_wait();
        }
      };
      std::vector<std::jthread> threads;
      for (int r = 0; r < ranks; ++r) threads.emplace_back(rank, static_cast<std::size_t>(r));
      threads.clear();
      EXPECT_EQ(steps, std::vector<int>(static_cast<std::size_t>(ranks), kSteps)) << backend->name;
      EXPECT_EQ(wrong, 0) << backend->name << ", " << ranks << " ranks";
    }
}

TEST(Reports, B116_TheSharedGateIsForTheSharedExpert) {
  for (const Format format : all_formats()) {
    LayerSpec spec = spec_of(format, kSilu, {}, {.hidden = 64, .intermediate = 96, .experts = 8, .top_k = 2});
    spec.shared = SharedSpec{.experts = spec_of(format, kSilu, {}, {.hidden = 64, .intermediate = 96}).routed,
                             .sigmoid_gate = true};
    Toy gated{.spec = spec, .weights = testing::draw_weights(spec, testing::Numbers::noisy, 6)};
    const std::vector<float> zeros(64);  // its sigmoid is 1/2
    gated.weights.shared_gate = {reinterpret_cast<const std::byte*>(zeros.data()), DType::f32, 64, 4};
    Toy open = gated;
    open.spec.shared->sigmoid_gate = false;
    open.weights.shared_gate = {};
    for (const Backend* backend : fitting(spec))
      for (const int tokens : {1, 2, 33}) {
        const Call call = draw_call(spec, tokens, 3);
        Call nobody = call;
        std::ranges::fill(nobody.ids, -1);
        const Output half = run(*backend, gated, call), shared_alone = run(*backend, open, nobody);
        EXPECT_EQ(half.experts, run(*backend, open, call).experts) << backend->name << ", " << format.str();
        for (std::size_t i = 0; i < half.block.size(); ++i)
          ASSERT_NEAR(half.block[i], half.experts[i] + 0.5f * shared_alone.block[i],
                      1e-5 * (1 + std::abs(half.block[i])))
              << backend->name << ", " << format.str() << ", " << tokens << " tokens";
        EXPECT_GT(norm(shared_alone.block), 0) << backend->name;
      }
  }
}

}  // namespace
}  // namespace sluice::reports
