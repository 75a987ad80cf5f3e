// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: parts of a layer, wherever they are cut, sum to the whole. Bit for bit on exact
// numbers, within roundings otherwise, in every format that a backend declares.
#include "sluice/slice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sluice/error.h"
#include "testing/closeness.h"
#include "testing/device_for.h"
#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"

namespace sluice::conformance {
namespace {

using testing::Numbers;

class SliceTest : public ::testing::TestWithParam<const Backend*> {};

/// Cuts at these, of 160, or of another width in proportion: within groups of 16, 32 and 128, uneven, and one
/// number alone.
const std::vector<std::vector<int>> kCuts = {{40, 80, 120}, {1}, {53, 54, 131}};

/// Where the width may be cut: groups that have a minimum (Q4_K, Q5_K) stay whole.
int cut_unit(const ExpertsSpec& spec) {
  const auto minimums = [](const MatrixFormats& formats) {
    return formats.down == Formats::of<format::Q4K>() || formats.down == Formats::of<format::Q5K>();
  };
  const auto other = [&](const OtherFormats& others) { return minimums(others.formats); };
  return minimums(spec.formats) || std::ranges::any_of(spec.others, other) ? 32 : 1;
}

IntermediateRange between(const std::vector<int>& cuts, std::size_t part, const ExpertsSpec& spec) {
  const int width = spec.intermediate, unit = cut_unit(spec);
  std::vector<int> ends{0};
  for (const int cut : cuts) ends.push_back(std::max(ends.back() + unit, cut * width / 160 / unit * unit));
  ends.push_back(width);
  return {ends[part], ends[part + 1]};
}

/// What the parts give, summed in the order of the ranks.
struct Parts {
  Outputs sum;
  testing::ReferenceResult definition;  // where they round activations: of which neighbours a cut takes apart
};

void add(const std::vector<double>& more, std::vector<double>& sum) {
  sum.resize(more.size());
  for (std::size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

void add_definition(const Problem& problem, const LayerSlice& mine, std::span<const LoraAdapter> adapters,
                    testing::ReferenceResult& sum) {
  std::vector<const LoraAdapter*> pointers;
  if (!problem.lora().ids.empty())
    for (const LoraAdapter& adapter : adapters) pointers.push_back(&adapter);
  const testing::ReferenceResult part =
      testing::reference_run({.spec = mine.spec,
                              .weights = mine.weights,
                              .hidden = problem.call().hidden,
                              .routing = problem.call().routing(mine.spec.routed.top_k),
                              .expert_map = problem.expert_map(),
                              .adapters = pointers,
                              .adapter_ids = problem.lora().ids,
                              .rounding = testing::Rounding::int8_activations});
  add(part.experts_out, sum.experts_out);
  add(part.experts_magnitude, sum.experts_magnitude);
  add(part.block_out, sum.block_out);
  add(part.block_magnitude, sum.block_magnitude);
}

Parts sum_of_parts(const Backend& backend, const Problem& problem, const std::vector<int>& cuts) {
  Parts parts;
  Outputs& sum = parts.sum;
  for (std::size_t part = 0; part <= cuts.size(); ++part) {
    SliceRange range{.routed = between(cuts, part, problem.spec().routed)};
    if (problem.spec().shared) range.shared = between(cuts, part, problem.spec().shared->experts);
    const LayerSlice mine = slice(problem.spec(), problem.weights(), range);
    const Plan plan = choose({.layer = mine.spec,
                              .device = testing::device_for(backend.name),
                              .by_name = std::string(backend.name)});
    const Layer layer(plan, mine.weights,
                      {.expert_map = problem.expert_map(), .executor = make_thread_team(2)});
    std::vector<LoraAdapter> adapters;
    for (const LoraAdapter* adapter : problem.lora().pointers()) adapters.push_back(slice(*adapter, mine));
    const Outputs out = problem.run(layer, 0, adapters);
    if (out.rounding != testing::Rounding::none) add_definition(problem, mine, adapters, parts.definition);
    if (part == 0) {
      sum = out;
      continue;
    }
    for (std::size_t i = 0; i < out.experts_out.size(); ++i) {
      sum.experts_out[i] += out.experts_out[i];
      sum.block_out[i] += out.block_out[i];
    }
  }
  return parts;
}

void expect_right(const Problem& problem, const Parts& parts) {
  if (parts.sum.rounding == testing::Rounding::none) return problem.expect_right(parts.sum);
  problem.expect_close(parts.sum, parts.definition);
}

/// A part of an act-order says smaller groups than the whole, of down alone (decision 018): a backend that
/// does not take any size, or not one of its own for down, does not take the part.
FeatureSet features_of_parts(const Capability& can) {
  const bool any_groups =
      can.integer_groups.multiple == 1 && can.features.has(Features::of<feature::MixedFormats>());
  return any_groups ? can.features : can.features.minus(Features::set<feature::ActOrder>());
}

/// Every format, with all features that apply but saturation, in turn with the activations; integers in every
/// declared group with zero points and act-order.
std::vector<Case> cases(const Capability& can) {
  const FeatureSet features_of_all = features_of_parts(can);
  std::vector<Case> made;
  const std::vector<Format> formats = members(can.weights);
  const std::vector<Activation> activations = members(can.activations);
  std::size_t turn = 0;
  for (const Format format : formats) {
    const auto add = [&](FeatureSet features, Shape shape) {
      const Activation activation = activations[turn++ % activations.size()];
      made.push_back(make_case(format, formats[turn % formats.size()], activation,
                               applicable(applicable(features, activation), format), shape));
    };
    add({}, {});
    add(features_of_all, {.hidden = 128, .intermediate = 160});
    add(features_of_all.minus(
            Features::set<feature::MixedFormats, feature::MixedGateUp, feature::MixedExperts>()),
        {});
    if (!is_integer(format)) continue;
    const FeatureSet order = Features::set<feature::ActOrder>(), zeros = Features::set<feature::ZeroPoints>();
    for (const FeatureSet& features : {zeros, order, zeros.plus(order)})
      if (features.minus(features_of_all).empty()) add(features, {});
    if (can.integer_groups.multiple == 1) add(zeros.plus(order), {.columns = 48});
    if (can.integer_groups.whole_row) add({}, {.columns = 0});
  }
  return made;
}

TEST_P(SliceTest, ExactPartsSumToTheWholeBitForBit) {
  for (const Case& made : cases(GetParam()->can)) {
    const Problem problem(made, Numbers::exact, {.tokens = 3});
    for (const std::vector<int>& cuts : kCuts) {
      SCOPED_TRACE(::testing::Message() << made.name << ", first cut " << cuts[0]);
      expect_right(problem, sum_of_parts(*GetParam(), problem, cuts));
    }
  }
}

TEST_P(SliceTest, NoisyPartsSumToTheWholeWithinRoundings) {
  for (const Case& made : cases(GetParam()->can)) {
    const Problem problem(made, Numbers::noisy, {.tokens = 3});
    SCOPED_TRACE(made.name);
    expect_right(problem, sum_of_parts(*GetParam(), problem, kCuts.back()));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SliceTest, ::testing::ValuesIn(testing::usable_backends()), test_name);

Case plain_case(FeatureSet features) {
  const Format mxfp4 = Formats::of<format::Mxfp4>();
  return make_case(mxfp4, mxfp4, Activations::of<activation::Silu>(), features);
}

/// Report B95: the bias of down is added once.
TEST(Slice, TheDownBiasIsWithTheFirstPart) {
  const Case made = plain_case(Features::set<feature::DownBias, feature::GateUpBias>());
  const LayerWeights weights = draw_weights(made.spec, Numbers::noisy, 1);
  for (int rank = 0; rank < 4; ++rank) {
    const LayerSlice part = slice(made.spec, weights, even_share(made.spec, rank, 4));
    EXPECT_EQ(part.spec.routed.down_bias, rank == 0);
    EXPECT_EQ(static_cast<bool>(part.weights.routed[0].down_bias), rank == 0);
    EXPECT_TRUE(part.weights.routed[0].up_bias);
    EXPECT_NO_THROW(validate(part.spec, part.weights));
  }
}

/// Reports B58 and B67: a part is as wide as it was cut, and reaches to the ends of its groups.
TEST(Slice, PartsReachToTheEndsOfTheirGroups) {
  Case made = plain_case({});
  made.spec.routed.intermediate = 2880;
  const LayerWeights weights = draw_weights(made.spec, Numbers::noisy, 1);
  const auto part = [&](int rank, int ranks) {
    return slice(made.spec, weights, even_share(made.spec, rank, ranks));
  };
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(part(rank, 2).spec.routed.intermediate, 1440);
  const IntermediateRange reaches[] = {{0, 736}, {704, 1440}, {1440, 2176}, {2144, 2880}};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(part(rank, 4).reach.routed, reaches[rank]);
    EXPECT_EQ(part(rank, 4).range.routed, (IntermediateRange{720 * rank, 720 * (rank + 1)}));
  }
  // Where a cut is between groups nothing is copied.
  EXPECT_EQ(part(0, 2).weights.routed[0].down.codes, weights.routed[0].down.codes);
  EXPECT_NE(part(0, 4).weights.routed[0].down.codes, weights.routed[0].down.codes);
}

/// A group of Q4_K or Q5_K has no zero, so a cut within it is refused; one between groups is not.
TEST(Slice, CutsWithinAGroupWithAMinimumAreRefused) {
  for (const Format format : {Formats::of<format::Q4K>(), Formats::of<format::Q5K>()}) {
    const Case made = make_case(format, format, Activations::of<activation::Silu>(), {});
    const LayerWeights weights = draw_weights(made.spec, Numbers::noisy, 1);
    EXPECT_NO_THROW(slice(made.spec, weights, {.routed = {0, 32}}));
    try {
      slice(made.spec, weights, {.routed = {0, 33}});
      ADD_FAILURE() << format.str();
    } catch (const Error& error) {
      EXPECT_EQ(error.info().code, "slice_in_group");
    }
  }
}

TEST(Slice, WhatIsNoSliceIsRefused) {
  const Case made = plain_case({});
  const LayerWeights weights = draw_weights(made.spec, Numbers::noisy, 1);
  const auto refused = [&](auto body, const char* why) {
    try {
      body();
      ADD_FAILURE() << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.info().code, "bad_slice") << why;
    }
  };
  for (const IntermediateRange range : {IntermediateRange{5, 5}, {-1, 5}, {0, 161}, {7, 3}})
    refused([&] { slice(made.spec, weights, {.routed = range}); }, "range");
  refused([&] { even_share(made.spec, 4, 4); }, "rank 4 of 4");
  refused([&] { even_share(made.spec, -1, 4); }, "rank -1 of 4");
  refused([&] { even_share(made.spec, 0, 0); }, "rank 0 of 0");
  refused([&] { slice(made.spec, weights, even_share(made.spec, 0, 200)); }, "an empty part");
}

}  // namespace
}  // namespace sluice::conformance
