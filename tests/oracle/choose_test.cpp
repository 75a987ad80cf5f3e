// SPDX-License-Identifier: Apache-2.0
// The order of verdicts, forcing, and what is asked wrongly.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/oracle/invented.h"

namespace sluice {
namespace {

using invented::backend;

Request request() { return {.layer = invented::layer(), .device = invented::cpu()}; }

std::vector<std::string> order(const Plan& plan) {
  std::vector<std::string> names;
  for (const Verdict& verdict : plan.verdicts) names.push_back(verdict.backend);
  return names;
}

class ChooseTest : public ::testing::Test {
 protected:
  ChooseTest() {
    Capability two_short = invented::everything_on_cpu(), one_short = two_short, uses = two_short;
    two_short.hidden_multiple = two_short.intermediate_multiple = 128;
    one_short.hidden_multiple = 128;
    uses.uses = InstructionList::set<instruction::Avx2>();
    far_ = backend("far", two_short);
    near_ = backend("near", one_short);
    slow_ = backend("slow", invented::everything_on_cpu());
    specialised_ = backend("specialised", uses);
    fast_ = backend("fast", invented::everything_on_cpu(), invented::fast);
  }

  static Backend empty() { return backend("", invented::everything_on_cpu()); }
  Backend far_ = empty(), near_ = empty(), slow_ = empty(), specialised_ = empty(), fast_ = empty();
  const Backend* const all_[5] = {&far_, &near_, &slow_, &specialised_, &fast_};
};

TEST_F(ChooseTest, CheapestFirstThenSpecialisedThenNearest) {
  const Plan plan = choose(request(), all_);
  EXPECT_EQ(plan.chosen, "fast");
  EXPECT_EQ(order(plan), (std::vector<std::string>{"fast", "specialised", "slow", "near", "far"}));
  EXPECT_EQ(plan.verdicts[3].misses.size(), 1u);
  EXPECT_EQ(plan.verdicts[4].misses.size(), 2u);
  EXPECT_TRUE(plan.verdicts[3].kernels.empty());
}

TEST_F(ChooseTest, AmongRefusalsEquallyNearTheOrderOfTheListStays) {
  Capability wide = invented::everything_on_cpu(), wider = wide;
  wide.uses = InstructionList::set<instruction::Avx512f>();
  wider.uses = InstructionList::set<instruction::Avx512f, instruction::AmxBf16>();
  const Backend first = backend("wide", wide), second = backend("wider", wider);
  const Backend* const both[] = {&first, &second};
  EXPECT_EQ(order(choose(request(), both)), (std::vector<std::string>{"wide", "wider"}));
}

TEST_F(ChooseTest, EachTokenCountIsPricedByTheKernelWhoseRangeHoldsIt) {
  Request ends = request();
  ends.tokens = {1, 16, 17};
  const Plan plan = choose(ends, all_);
  const std::vector<KernelCost>& costs = plan.verdicts.front().kernels;
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_EQ(costs[0].kernel, "gemv");
  EXPECT_EQ(costs[0].us, 1);
  EXPECT_EQ(costs[1].kernel, "gemv");
  EXPECT_EQ(costs[1].us, 16);
  EXPECT_EQ(costs[2].kernel, "mma");
  EXPECT_EQ(costs[2].us, 51);
  EXPECT_EQ(costs[2].tokens, 17);
  EXPECT_EQ(costs[2].basis, "estimated");
}

TEST_F(ChooseTest, TheTokenCountsDecide) {
  const Backend cheap_when_many = backend("mma only", invented::everything_on_cpu(), [] {
    static constexpr Kernel kOne[] = {
        {.name = "mma",
         .tokens = {},
         .estimate_us = [](const ExpertsSpec&, const DeviceFacts&, int tokens) { return 20.0 + tokens; },
         .workspace_bytes = nullptr,
         .run = nullptr}};
    return std::span<const Kernel>(kOne);
  });
  const Backend* const two[] = {&cheap_when_many, &slow_};
  Request few = request(), many = request();
  few.tokens = {1};
  many.tokens = {1, 64};
  EXPECT_EQ(choose(few, two).chosen, "slow");
  EXPECT_EQ(choose(many, two).chosen, "mma only");
}

TEST_F(ChooseTest, ASharedExpertCostsToo) {
  Request shared = request();
  shared.layer = invented::with_shared(shared.layer);
  shared.tokens = {3};
  EXPECT_EQ(choose(shared, all_).verdicts.front().kernels.front().us, 6);
}

TEST_F(ChooseTest, ByNameTakesThatOneOrNone) {
  Request forced = request();
  forced.by_name = "slow";
  Plan plan = choose(forced, all_);
  EXPECT_EQ(plan.chosen, "slow");
  EXPECT_FALSE(plan.verdicts[1].fits);
  EXPECT_EQ(plan.verdicts[1].misses.back().why, "slow was asked for by name");

  forced.by_name = "near";
  plan = choose(forced, all_);
  EXPECT_EQ(plan.chosen, "") << "no hidden fallback";
  ASSERT_EQ(plan.verdicts.front().backend, "near") << "the one asked for first";
  ASSERT_EQ(plan.verdicts.front().misses.size(), 1u);
  EXPECT_EQ(plan.verdicts.front().misses[0].why, "2880 is not a multiple of 128");

  forced.by_name = "far";
  plan = choose(forced, all_);
  EXPECT_EQ(plan.verdicts.front().backend, "far") << "whatever the others lack";
  EXPECT_EQ(plan.verdicts.front().misses.size(), 2u);
}

TEST_F(ChooseTest, AnUnknownNameListsTheKnownOnes) {
  Request unknown = request();
  unknown.by_name = "fastest";
  try {
    choose(unknown, all_);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_EQ(error.info().code, "unknown_backend");
    EXPECT_EQ(error.info().why, "this build has far, near, slow, specialised, fast");
  }
}

TEST_F(ChooseTest, NoBackendsIsAPlanWithoutChoice) {
  const Plan plan = choose(request(), {});
  EXPECT_EQ(plan.chosen, "");
  EXPECT_TRUE(plan.verdicts.empty());
}

TEST_F(ChooseTest, TokenCountsMustBePositive) {
  for (const std::vector<int>& tokens : {std::vector<int>{}, {0}, {1, -3}}) {
    Request bad = request();
    bad.tokens = tokens;
    EXPECT_THROW(choose(bad, all_), Error);
  }
}

TEST_F(ChooseTest, SpecsThatMakeNoSenseAreRefusedBeforeAnyVerdict) {
  Request bad = request();
  bad.layer.routed.params.limit = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(choose(bad, all_), Error);
}

TEST(Backends, TheReferenceIsThereAndOnlyByName) {
  Request asked = request();
  asked.tokens = {1};
  const Plan plan = choose(asked);
  const auto reference = std::ranges::find(plan.verdicts, "reference", &Verdict::backend);
  ASSERT_NE(reference, plan.verdicts.end());
  EXPECT_FALSE(reference->fits);
  EXPECT_EQ(reference->misses.size(), 1u);
  asked.by_name = "reference";
  EXPECT_EQ(choose(asked).chosen, "reference");
}

TEST(Backends, TheReferenceTakesEverything) {
  Request asked = request();
  asked.by_name = "reference";
  asked.layer = invented::with_shared(asked.layer);
  asked.layer.routed.local_experts = 8;
  asked.layer.routed.weight_on_input = true;
  asked.layer.routed.formats.down = Formats::of<format::Nvfp4>();
  EXPECT_EQ(choose(asked).chosen, "reference") << explain(choose(asked));
}

TEST(Backends, InfoSaysWhatTheyDeclare) {
  const std::vector<BackendInfo> infos = backends_info();
  ASSERT_EQ(infos.size(), backends().size());
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const Capability& can = backends()[i]->can;
    EXPECT_EQ(infos[i].name, backends()[i]->name);
    EXPECT_EQ(infos[i].device, can.device.str());
    EXPECT_EQ(std::ssize(infos[i].formats), can.weights.size());
    EXPECT_EQ(std::ssize(infos[i].activations), can.activations.size());
    EXPECT_EQ(std::ssize(infos[i].features), can.features.size());
    EXPECT_EQ(std::ssize(infos[i].instructions), can.uses.size());
  }
  EXPECT_TRUE(std::ranges::find(infos, "reference", &BackendInfo::name)->built);
}

/// Every count from 1 up is in exactly one kernel's range, so a forward call always finds its kernel.
TEST(Backends, KernelRangesTileAllTokenCounts) {
  for (const Backend* each : backends()) {
    std::vector<TokenRange> ranges;
    for (const Kernel& kernel : each->kernels()) ranges.push_back(kernel.tokens);
    std::ranges::sort(ranges, {}, &TokenRange::first);
    int next = 1;
    for (const TokenRange& range : ranges) {
      EXPECT_EQ(range.first, next) << each->name;
      next = range.last + 1;
    }
    EXPECT_TRUE(ranges.empty() || next > 1 << 30) << each->name;
  }
}

}  // namespace
}  // namespace sluice
