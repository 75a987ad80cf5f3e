// SPDX-License-Identifier: Apache-2.0
// Experts that are spread over ranks: the parts, summed in order, are the flat call's result to the bit. And
// the batch invariance that a backend declares. That every layout gives the flat call's bits is cells_test's
// business.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/bits.h"
#include "sluice/error.h"
#include "testing/closeness.h"
#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/ranks.h"

namespace sluice::conformance {
namespace {

using testing::Numbers;

class LayoutsTest : public ::testing::TestWithParam<const Backend*> {};

/// Every format and every activation with all features that apply, six experts here.
std::vector<Case> cases(const Capability& can) {
  std::vector<Case> made;
  FeatureSet features = can.features;
  features = features.minus(
      FeatureSet().add(Features::of<feature::ExpertMap>()).add(Features::of<feature::SharedExpert>()));
  features = features.minus(Features::set<feature::MixedFormats, feature::MixedGateUp>());
  const std::vector<Format> formats = members(can.weights);
  const std::vector<Activation> activations = members(can.activations);
  for (std::size_t i = 0; i < std::max(formats.size(), activations.size()); ++i) {
    const Format format = formats[i % formats.size()];
    const Activation activation = activations[i % activations.size()];
    made.push_back(make_case(format, format, activation, applicable(features, activation),
                             {.hidden = 64, .intermediate = 96}));
  }
  return made;
}

TEST_P(LayoutsTest, PartsOfRanksSumToTheWhole) {
  const Backend& backend = *GetParam();
  if (!backend.can.calls.has(CallModes::of<call::Contiguous>()))
    GTEST_SKIP() << "declares no contiguous calls";
  // Uneven; with redundant experts; a rank with an expert that nobody asks for much.
  const std::vector<std::vector<Rank>> maps = {
      {{5, 0, 3}, {1}, {2, 4}}, {{0, 1, 2, 3}, {3, 4, 5, 0}, {0}}, {{0, 1, 2, 3, 4}, {5}}};
  for (const Format format : members(backend.can.weights)) {
    FeatureSet features = Features::set<feature::DownBias>();
    if (backend.can.features.has(Features::of<feature::MixedExperts>()))
      features.add(Features::of<feature::MixedExperts>());
    if (backend.can.features.has(Features::of<feature::Latent>()))
      features.add(Features::of<feature::Latent>());
    const Case made = make_case(format, format, members(backend.can.activations).front(), features);
    const Problem problem(made, Numbers::noisy, {.tokens = 9, .dtype = DType::f32});
    const std::vector<float> flat = problem.run(problem.layer(backend)).experts_out;
    for (const std::vector<Rank>& ranks : maps)
      for (const bool batched : {false, true})
        EXPECT_TRUE(is_right(backend, problem, flat,
                             over_ranks(backend, problem, problem.weights(), ranks, batched, 100)))
            << made.name << ", " << ranks.size() << " ranks";
  }
}

TEST_P(LayoutsTest, ARankWithNothingToDoWritesNothing) {
  const Backend& backend = *GetParam();
  if (!backend.can.calls.has(CallModes::of<call::Batched>())) GTEST_SKIP() << "declares no batched calls";
  const Problem problem(make_case(members(backend.can.weights).front(), members(backend.can.weights).front(),
                                  members(backend.can.activations).front(), {}),
                        Numbers::noisy, {.tokens = 3, .dtype = DType::f32});
  const Layer layer = layer_of(backend, problem, problem.weights(), {1, 2});
  Dispatch rows = dispatch(problem, {1, 2}, true, [](std::int32_t) { return -1; });
  run(layer, problem, rows, 1);
  EXPECT_EQ(std::ranges::count(rows.output, kUnwritten), std::ssize(rows.output));
}

TEST_P(LayoutsTest, BatchInvariance) {
  const Backend& backend = *GetParam();
  if (!testing::is_batch_invariant(backend)) GTEST_SKIP() << "declares no invariance";
  for (const Case& made : cases(backend.can)) {
    const Problem together(made, Numbers::noisy, {.tokens = 11});
    const Layer two = together.layer(backend, 2), three = together.layer(backend, 3);
    const Outputs whole = together.run(two);
    EXPECT_EQ(together.run(three), whole) << made.name << ", 3 threads";
    // One at a time, and in parts of uneven size.
    EXPECT_EQ(together.run(two, 1), whole) << made.name << ", one token at a time";
    EXPECT_EQ(together.run(two, 4), whole) << made.name << ", 4, 4 and 3 tokens";
  }
}

TEST(Layouts, ACallThatWasNotPlannedIsRefused) {
  const Backend& backend = *testing::usable_backends().front();
  const Problem problem(make_case(members(backend.can.weights).front(), members(backend.can.weights).front(),
                                  members(backend.can.activations).front(), {}),
                        Numbers::noisy, {.tokens = 3, .dtype = DType::f32});
  const Layer layer = problem.layer(backend);
  const std::vector<std::int32_t> counts(6, 0);
  try {
    layer.run_rows(
        ExpertRows{.hidden = {nullptr, DType::f32, 0, problem.spec().routed.hidden, 0}, .counts = counts});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.info().code, "not_planned");
    EXPECT_NE(std::string(error.what()).find("batched"), std::string::npos) << error.what();
  }
}

TEST_P(LayoutsTest, RowsThatContradictTheLayerAreRefused) {
  const Backend& backend = *GetParam();
  const Problem problem(make_case(members(backend.can.weights).front(), members(backend.can.weights).front(),
                                  members(backend.can.activations).front(), {}),
                        Numbers::noisy, {.tokens = 3, .dtype = DType::f32});
  const Layer layer = layer_of(backend, problem, problem.weights(), {0, 1});
  const int hidden = problem.spec().routed.hidden;
  std::vector<float> rows(static_cast<std::size_t>(8) * hidden);
  const RowsView view{reinterpret_cast<const std::byte*>(rows.data()), DType::f32, 8, hidden,
                      std::ptrdiff_t{hidden} * 4};
  const std::vector<std::int32_t> down{0, 5, 3}, far{0, 5, 9}, few{0, 5}, counts{1, 5}, negative{-1, 1};
  const ExpertRows good{.hidden = view, .output = rows.data()};
  const auto refused = [&](ExpertRows call, const char* why) {
    try {
      layer.run_rows(call);
      ADD_FAILURE() << why << ": no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  ExpertRows call = good;
  call.offsets = down;
  refused(call, "do not ascend");
  call.offsets = far;
  refused(call, "do not ascend");
  call.offsets = few;
  refused(call, "2 offsets");
  call = good;
  call.counts = counts;
  call.max_tokens = 4;
  refused(call, "a count of 5");
  call.counts = negative;
  refused(call, "a count of -1");
  call.max_tokens = 3;
  refused(call, "are not 8 rows");
}

INSTANTIATE_TEST_SUITE_P(Backends, LayoutsTest, ::testing::ValuesIn(testing::usable_backends()), test_name);

}  // namespace
}  // namespace sluice::conformance
