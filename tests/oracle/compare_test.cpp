// SPDX-License-Identifier: Apache-2.0
// Every reason to refuse, each by itself and all together.
#include <gtest/gtest.h>

#include "tests/oracle/invented.h"

namespace sluice {
namespace {

using invented::backend;

/// The one miss, or a failed test.
Miss only_miss(const Backend& refusing, const Request& request) {
  const std::vector<Miss> misses = compare(refusing, request);
  EXPECT_EQ(misses.size(), 1u);
  return misses.empty() ? Miss{} : misses.front();
}

Request request() { return {.layer = invented::layer(), .device = invented::cpu()}; }

TEST(Compare, NothingIsMissingWhereEverythingIsDeclared) {
  EXPECT_TRUE(compare(backend("all", invented::everything_on_cpu()), request()).empty());
}

TEST(Compare, AnEmptyCapabilityRefusesEverythingItCan) {
  const std::vector<Miss> misses =
      compare(backend("none", {.device = DeviceKinds::of<device::Cpu>()}), request());
  ASSERT_EQ(misses.size(), 3u);
  EXPECT_EQ(misses[0].trait, "weights");
  EXPECT_EQ(misses[0].why, "mxfp4 is not in {}");
  EXPECT_EQ(misses[1].trait, "activation");
  EXPECT_EQ(misses[1].why, "silu is not in {}");
  EXPECT_EQ(misses[2].trait, "features");
  EXPECT_EQ(misses[2].why, "has no gate_up_bias, down_bias, limit, slope, shift");
}

TEST(Compare, AnotherDeviceIsOneMissWhateverItsInstructions) {
  Capability can = invented::everything_on_cpu();
  can.device = DeviceKinds::of<device::Cuda>();
  can.uses = InstructionList::set<instruction::Wgmma>();
  const Miss miss = only_miss(backend("card", can), request());
  EXPECT_EQ(miss.trait, "device");
  EXPECT_EQ(miss.wanted, "cpu");
  EXPECT_EQ(miss.offered, "cuda");
  EXPECT_EQ(miss.why, "runs on cuda");
}

TEST(Compare, MissingInstructionsAreNamed) {
  Capability can = invented::everything_on_cpu();
  can.uses = InstructionList::set<instruction::Avx2, instruction::Avx512f, instruction::Avx512bf16>();
  const Miss miss = only_miss(backend("wide", can), request());
  EXPECT_EQ(miss.trait, "instructions");
  EXPECT_EQ(miss.wanted, "avx2, avx512f, avx512_bf16");
  EXPECT_EQ(miss.offered, "avx2, fma");
  EXPECT_EQ(miss.why, "a processor lacks avx512f, avx512_bf16");
}

TEST(Compare, EachFormatOfAMixtureIsAMissOfItsOwn) {
  Capability can = invented::everything_on_cpu();
  can.weights = Formats::set<format::Bf16>();
  Request mixed = request();
  mixed.layer.routed.formats.down = Formats::of<format::Nvfp4>();
  const std::vector<Miss> misses = compare(backend("bf16", can), mixed);
  ASSERT_EQ(misses.size(), 2u);
  EXPECT_EQ(misses[0].wanted, "mxfp4");
  EXPECT_EQ(misses[0].offered, "{bf16}");
  EXPECT_EQ(misses[1].wanted, "nvfp4");
}

TEST(Compare, FeaturesSayWhatIsWantedAndOffered) {
  Capability can = invented::everything_on_cpu();
  can.features = Features::set<feature::GateUpBias, feature::DownBias, feature::Slope>();
  const Miss miss = only_miss(backend("no limit", can), request());
  EXPECT_EQ(miss.trait, "features");
  EXPECT_EQ(miss.wanted, "gate_up_bias, down_bias, limit, slope, shift");
  EXPECT_EQ(miss.offered, "gate_up_bias, down_bias, slope");
  EXPECT_EQ(miss.why, "has no limit, shift");
}

TEST(Compare, SizesMustBeMultiples) {
  Capability can = invented::everything_on_cpu();
  can.hidden_multiple = 128;
  can.intermediate_multiple = 7;
  const std::vector<Miss> misses = compare(backend("tiles", can), request());
  ASSERT_EQ(misses.size(), 2u);
  EXPECT_EQ(misses[0].trait, "hidden");
  EXPECT_EQ(misses[0].why, "2880 is not a multiple of 128");
  EXPECT_EQ(misses[1].trait, "intermediate");
  EXPECT_EQ(misses[1].why, "2880 is not a multiple of 7");
  can.hidden_multiple = 64;
  can.intermediate_multiple = 32;
  EXPECT_TRUE(compare(backend("tiles", can), request()).empty());
}

TEST(Compare, TheSharedExpertIsComparedToo) {
  Request shared = request();
  shared.layer = invented::with_shared(invented::plain_layer());
  ExpertsSpec& experts = shared.layer.shared->experts;
  experts.formats.up = experts.formats.down = Formats::of<format::Fp8Block128>();
  experts.formats.gate = experts.formats.up;
  experts.activation = Activations::of<activation::SiluThenClamp>();
  experts.params.limit = 16;
  Capability can = invented::everything_on_cpu();
  can.weights = Formats::set<format::Bf16>();
  can.activations = Activations::set<activation::Silu>();
  can.features = Features::set<feature::SharedExpert>();
  can.intermediate_multiple = 64;
  const std::vector<Miss> misses = compare(backend("plain", can), shared);
  ASSERT_EQ(misses.size(), 4u);
  EXPECT_EQ(misses[0].trait, "shared weights");
  EXPECT_EQ(misses[1].trait, "shared activation");
  EXPECT_EQ(misses[1].why, "silu_then_clamp is not in {silu}");
  EXPECT_EQ(misses[2].trait, "shared features");
  EXPECT_EQ(misses[2].why, "has no limit");
  EXPECT_EQ(misses[3].trait, "shared intermediate");
  EXPECT_EQ(misses[3].why, "1440 is not a multiple of 64");
}

TEST(Compare, ABackendWithoutSharedExpertsSaysSo) {
  Request shared = request();
  shared.layer = invented::with_shared(invented::plain_layer());
  Capability can = invented::everything_on_cpu();
  can.features = Features::everything().minus(Features::set<feature::SharedExpert>());
  EXPECT_EQ(only_miss(backend("routed only", can), shared).why, "has no shared_expert");
}

TEST(Compare, KernelsThatAreNotBuiltAreAMissAndNotAnAbsence) {
  const Miss miss =
      only_miss(backend("left out", invented::everything_on_cpu(), invented::not_built), request());
  EXPECT_EQ(miss.trait, "build");
  EXPECT_EQ(miss.why, "its kernels are not in this build");
}

TEST(Compare, TokenCountsOutsideEveryRange) {
  const Miss miss = only_miss(backend("few", invented::everything_on_cpu(), invented::few_tokens), request());
  EXPECT_EQ(miss.trait, "tokens");
  EXPECT_EQ(miss.why, "no kernel takes 256 tokens");
}

/// Also where it is the only one that fits, and cheaper than any other.
TEST(Compare, WhatRoundsMoreSaysWhatItRoundsAndWaitsToBeAsked) {
  Capability rounds = invented::everything_on_cpu();
  rounds.accuracy = Accuracies::of<accuracy::Int8Activations>();
  Backend rounded = backend("rounded", rounds, invented::fast);
  rounded.only_by_name = true;
  EXPECT_EQ(only_miss(rounded, request()).why,
            "not asked for by name, and rounds more than float32 (int8_activations)");
  const Backend* const all[] = {&rounded};
  EXPECT_EQ(choose(request(), all).chosen, "");
}

TEST(Compare, TheReferenceWaitsToBeAsked) {
  Backend reference = backend("definition", invented::everything_on_cpu());
  reference.only_by_name = true;
  const Miss miss = only_miss(reference, request());
  EXPECT_EQ(miss.trait, "choice");
  EXPECT_EQ(miss.why, "not asked for by name");
  Request asked = request();
  asked.by_name = "definition";
  EXPECT_TRUE(compare(reference, asked).empty());
}

TEST(Compare, MissesAddUp) {
  Backend all_wrong = backend(
      "all wrong",
      {.device = DeviceKinds::of<device::Cuda>(), .hidden_multiple = 128, .intermediate_multiple = 128},
      invented::not_built);
  all_wrong.only_by_name = true;
  std::vector<std::string> traits;
  for (const Miss& miss : compare(all_wrong, request())) {
    traits.push_back(miss.trait);
    EXPECT_FALSE(miss.wanted.empty() || miss.offered.empty() || miss.why.empty()) << miss.trait;
  }
  EXPECT_EQ(traits, (std::vector<std::string>{"device", "weights", "activation", "features", "hidden",
                                              "intermediate", "choice", "build"}));
}

}  // namespace
}  // namespace sluice
