// SPDX-License-Identifier: Apache-2.0
// Whatever a backend declares, it computes. Generated from the capabilities of every backend that runs here.
#include <gtest/gtest.h>

#include <algorithm>

#include "testing/closeness.h"
#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"

namespace sluice::conformance {
namespace {

using testing::Numbers;

class DeclaredTest : public ::testing::TestWithParam<const Backend*> {};

/// Integers that every format holds: any difference is an indexing bug.
TEST_P(DeclaredTest, ExactNumbersBitForBit) {
  const Backend& backend = *GetParam();
  for (const Case& made : declared_cases(backend.can))
    Problem(made, Numbers::exact, {.tokens = 9}).check(backend);
}

/// One token; several are what cells_test has.
TEST_P(DeclaredTest, NoisyNumbersWithinRoundings) {
  const Backend& backend = *GetParam();
  for (const Case& made : declared_cases(backend.can))
    Problem(made, Numbers::noisy, {.tokens = 1}).check(backend);
}

/// At least a tenth of gates and ups exceed the limit, and an output without the clamp would have been
/// rejected.
TEST_P(DeclaredTest, ADroppedClampWouldShow) {
  const Backend& backend = *GetParam();
  const Feature limit = Features::of<feature::Limit>();
  if (!backend.can.features.has(limit)) GTEST_SKIP() << "declares no limit";
  for (const Activation activation : members(backend.can.activations)) {
    if (!applicable(backend.can.features, activation).has(limit)) continue;
    for (const Format format : members(backend.can.weights)) {
      const Problem problem(make_case(format, format, activation, FeatureSet().add(limit)), Numbers::noisy,
                            {.tokens = 8});
      const testing::ReferenceResult& definition = problem.definition();
      ASSERT_GE(definition.gate_over_limit, 0.10);
      ASSERT_GE(definition.up_over_limit, 0.10);
      const Outputs out = problem.run(problem.layer(backend));
      problem.expect_right(out);
      const testing::Closeness without = testing::closeness({.got = out.experts_out,
                                                             .want = definition.experts_out_without_clamp,
                                                             .magnitude = definition.experts_magnitude,
                                                             .width = problem.spec().routed.hidden,
                                                             .unit = testing::kBf16Unit});
      EXPECT_FALSE(without.ok()) << backend.name << ", " << problem.name() << ": " << without.str();
    }
  }
}

/// Not a failure, but nothing to keep quiet about: what this machine cannot run is conformant on somebody's
/// word.
TEST(Declared, EveryBackendOfThisBuildRunsHere) {
  const std::vector<const Backend*> usable = testing::usable_backends();
  std::string others;
  for (const Backend* backend : backends())
    if (std::ranges::find(usable, backend) == usable.end()) others += " " + std::string(backend->name);
  if (!others.empty()) GTEST_SKIP() << "not tested on this machine:" << others;
}

TEST(Declared, WhatRoundsMoreIsChosenByNameAlone) {
  for (const Backend* backend : backends())
    EXPECT_TRUE(backend->only_by_name || backend->can.accuracy == Accuracies::of<accuracy::Float32>())
        << backend->name;
}

TEST_P(DeclaredTest, HiddenOfEveryType) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const Case made = make_case(members(GetParam()->can.weights).front(), Formats::of<format::Bf16>(),
                                members(GetParam()->can.activations).front(), {});
    Problem(made, Numbers::exact, {.tokens = 5, .dtype = dtype}).check(*GetParam());
    Problem(made, Numbers::noisy, {.tokens = 5, .dtype = dtype}).check(*GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DeclaredTest, ::testing::ValuesIn(testing::usable_backends()), test_name);

}  // namespace
}  // namespace sluice::conformance
