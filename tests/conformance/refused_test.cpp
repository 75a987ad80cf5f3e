// SPDX-License-Identifier: Apache-2.0
// Whatever a backend does not declare is refused, with that reason. Real backends are asked for what they
// lack, and for each thing they have, an invented copy without it is asked too.
#include <gtest/gtest.h>

#include "oracle/oracle.h"
#include "tests/conformance/cases.h"

namespace sluice::conformance {
namespace {

constexpr Format kInt4 = Formats::of<format::Int4>();

/// Stands in for kernels that a build leaves out: what is declared is refused for its own reasons there too.
std::span<const Kernel> left_out() {
  static constexpr Kernel kKernels[] = {
      {.name = "left out",
       .tokens = {},
       .estimate_us = [](const ExpertsSpec&, const DeviceFacts&, int) { return 1.0; },
       .workspace_bytes = nullptr,
       .run = nullptr}};
  return kKernels;
}

class RefusedTest : public ::testing::TestWithParam<const Backend*> {
 protected:
  const Backend& backend() const { return *GetParam(); }

  /// The plan for a machine that has what the backend (as it is) uses.
  Plan plan_with(const Backend& refusing, const Case& made) const {
    Backend built = refusing;
    if (built.kernels().empty()) built.kernels = left_out;
    const Backend* const only[] = {&built};
    return choose({.layer = made.spec,
                   .device = {.kind = backend().can.device, .name = "invented", .has = backend().can.uses},
                   .tokens = {1, 16},
                   .by_name = std::string(refusing.name)},
                  only);
  }

  /// A request that `trait` alone keeps `refusing` from; the plan says so and chooses nothing.
  void expect_refused(const Backend& refusing, const Case& made, std::string_view trait,
                      std::string_view why) const {
    const Plan plan = plan_with(refusing, made);
    EXPECT_EQ(plan.chosen, "") << refusing.name << " accepted " << made.name;
    bool said = false;
    for (const Miss& miss : plan.verdicts.front().misses) {
      EXPECT_EQ(miss.trait, trait) << explain(plan);
      said = said || miss.why.find(why) != std::string::npos;
    }
    EXPECT_TRUE(said) << refusing.name << ", " << made.name << ": no miss \"" << trait << ": ... " << why
                      << "\" in\n"
                      << explain(plan);
  }

  Format format() const { return members(backend().can.weights).front(); }
  Activation activation() const { return members(backend().can.activations).front(); }
};

/// A copy of the backend with another capability.
template <class Change>
Backend without(const Backend& backend, Change&& change) {
  Backend copy = backend;
  change(copy.can);
  return copy;
}

TEST_P(RefusedTest, EveryFormatThatIsNotDeclared) {
  for (const Format each : members(NameSet<struct FormatTag>::all())) {
    const Case made = make_case(each, each, activation(), {});
    const Backend lacking = without(backend(), [&](Capability& can) {
      can.weights = can.weights.minus(NameSet<struct FormatTag>().add(each));
    });
    expect_refused(lacking, made, "weights", std::string(each.str()) + " is not in {");
    if (!backend().can.weights.has(each)) expect_refused(backend(), made, "weights", each.str());
  }
}

TEST_P(RefusedTest, EveryActivationThatIsNotDeclared) {
  for (const Activation each : members(NameSet<struct ActivationTag>::all())) {
    const Case made = make_case(format(), format(), each, {});
    const Backend lacking = without(backend(), [&](Capability& can) {
      can.activations = can.activations.minus(NameSet<struct ActivationTag>().add(each));
    });
    expect_refused(lacking, made, "activation", std::string(each.str()) + " is not in {");
    if (!backend().can.activations.has(each)) expect_refused(backend(), made, "activation", each.str());
  }
}

/// Each alone, so that no other feature's absence can stand in for it.
TEST_P(RefusedTest, EveryFeatureThatIsNotDeclared) {
  const Format other = members(backend().can.weights).back();
  ASSERT_NE(other, format()) << "a second format is needed";
  for (const Feature each : members(FeatureSet::all())) {
    Activation reading = activation();
    for (const Activation candidate : members(NameSet<struct ActivationTag>::all()))
      if (!applicable(FeatureSet().add(each), candidate).empty()) reading = candidate;
    const bool of_integers = applicable(FeatureSet().add(each), format()).empty();
    const Case made = make_case(of_integers ? kInt4 : format(), other, reading, FeatureSet().add(each));
    ASSERT_TRUE(needs(made.spec).has(each)) << each.str();
    // What the layer has beside the backend's own formats: integers, or the plain numbers of mixed experts.
    const Format plain = Format::parse("bf16").value();
    const bool of_plain = Feature::parse("mixed_experts") == each;
    const Backend lacking = without(backend(), [&](Capability& can) {
      can.features = can.features.minus(FeatureSet().add(each));
      if (of_integers) can.weights.add(kInt4);
      if (of_plain) can.weights.add(plain);
      can.integer_groups = {.multiple = 1, .whole_row = true};
    });
    expect_refused(lacking, made, "features", each.str());
    if (!backend().can.features.has(each) && (!of_integers || backend().can.weights.has(kInt4)) &&
        (!of_plain || backend().can.weights.has(plain)))
      expect_refused(backend(), made, "features", each.str());
  }
}

TEST_P(RefusedTest, GroupsThatAreNotDeclared) {
  const auto made = [&](int columns) {
    return make_case(kInt4, kInt4, activation(), {}, {.hidden = 128, .intermediate = 64, .columns = columns});
  };
  const auto with = [&](IntegerGroups groups) {
    return without(backend(), [&](Capability& can) {
      can.weights.add(kInt4);
      can.integer_groups = groups;
    });
  };
  expect_refused(with({.multiple = 32, .whole_row = true}), made(16), "group",
                 "16 is not in {multiples of 32, whole rows}");
  expect_refused(with({.multiple = 32}), made(0), "group", "whole rows is not in {multiples of 32}");
  expect_refused(with({.whole_row = true}), made(128), "group", "128 is not in {whole rows}");
  expect_refused(with({}), made(32), "group", "32 is not in {}");
}

TEST_P(RefusedTest, SizesThatAreNotMultiples) {
  const Case made = make_case(format(), format(), activation(), {}, {.hidden = 96, .intermediate = 160});
  expect_refused(without(backend(), [](Capability& can) { can.hidden_multiple = 64; }), made, "hidden",
                 "96 is not a multiple of 64");
  expect_refused(without(backend(), [](Capability& can) { can.intermediate_multiple = 96; }), made,
                 "intermediate", "160 is not a multiple of 96");
}

TEST_P(RefusedTest, InstructionsThatTheMachineLacks) {
  const Case made = make_case(format(), format(), activation(), {});
  expect_refused(
      without(backend(), [](Capability& can) { can.uses.add(InstructionList::of<instruction::Tcgen05>()); }),
      made, "instructions", "lacks tcgen05");
}

TEST_P(RefusedTest, AnotherDevice) {
  const Case made = make_case(format(), format(), activation(), {});
  const bool cpu = backend().can.device == DeviceKinds::of<device::Cpu>();
  const DeviceKind other = cpu ? DeviceKinds::of<device::Cuda>() : DeviceKinds::of<device::Cpu>();
  expect_refused(without(backend(), [&](Capability& can) { can.device = other; }), made, "device",
                 "runs on " + std::string(other.str()));
}

/// A new feature is refused by every backend that predates it: the default is no.
TEST_P(RefusedTest, AnEmptyCapability) {
  const Case made = make_case(format(), format(), activation(), {});
  const Backend empty = without(backend(), [](Capability& can) { can = {.device = can.device}; });
  std::vector<std::string> traits;
  const Plan plan = plan_with(empty, made);
  for (const Miss& miss : plan.verdicts.front().misses) traits.push_back(miss.trait);
  EXPECT_EQ(traits, (std::vector<std::string>{"weights", "activation"}));
}

INSTANTIATE_TEST_SUITE_P(Backends, RefusedTest, ::testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace sluice::conformance
