// SPDX-License-Identifier: Apache-2.0
// Routings that upset grouping: an expert with everything, experts with nothing, ids that are no ids.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"

namespace sluice::conformance {
namespace {

using testing::Numbers;

constexpr int kTokens = 21;

class RoutingTest : public ::testing::TestWithParam<const Backend*> {
 protected:
  const Backend& backend() const { return *GetParam(); }

  /// A layer of 6 experts with all declared features but these.
  Case layer(FeatureSet left_out) const {
    const Activation activation = members(backend().can.activations).front();
    const FeatureSet features = applicable(backend().can.features, activation).minus(left_out);
    const Format format = members(backend().can.weights).front();
    return make_case(format, format, activation,
                     features.minus(Features::set<feature::MixedFormats, feature::MixedGateUp>()));
  }
  Case layer() const { return layer(Features::set<feature::ExpertMap, feature::WeightOnInput>()); }

  /// Both kinds of numbers, ids by `id(token, slot)`; all experts here and a part of them, weights on either
  /// side.
  template <class Id>
  void check(Id&& id) const {
    for (const FeatureSet left_out :
         {Features::set<feature::ExpertMap>(), Features::set<feature::WeightOnInput>(), FeatureSet()})
      for (const Numbers numbers : {Numbers::exact, Numbers::noisy}) {
        const Problem drawn(layer(left_out), numbers, {.tokens = kTokens});
        std::vector<std::int32_t> ids;
        for (int token = 0; token < kTokens; ++token)
          for (int slot = 0; slot < 2; ++slot) ids.push_back(id(token, slot));
        drawn.with_routing(ids, drawn.call().weights).check(backend());
      }
  }
};

TEST_P(RoutingTest, OneExpertGetsAllAndTheOthersNone) {
  check([](int, int slot) { return slot == 0 ? 4 : -1; });
}

TEST_P(RoutingTest, TwoExpertsShareAll) {
  check([](int, int slot) { return slot == 0 ? 5 : 0; });
}

TEST_P(RoutingTest, RepeatedIds) {
  check([](int token, int) { return token % 6; });
}

TEST_P(RoutingTest, NothingAtAllIsZero) {
  check([](int, int) { return -1; });
}

TEST_P(RoutingTest, IdsOutsideContributeNothing) {
  check([](int token, int slot) {
    const std::int32_t outside[] = {-1, 6, std::numeric_limits<std::int32_t>::max(),
                                    std::numeric_limits<std::int32_t>::min(), 1000};
    return slot == token % 2 ? outside[token % 5] : token % 6;
  });
}

/// Expert 4 is elsewhere where there is a map.
TEST_P(RoutingTest, SomeTokensHaveNoExpertHere) {
  check([](int token, int slot) { return token % 3 == 0 ? (slot == 0 ? 1 : 4) : (token + slot) % 6; });
}

TEST_P(RoutingTest, ZeroAndNegativeWeights) {
  for (const Numbers numbers : {Numbers::exact, Numbers::noisy}) {
    const Problem drawn(layer(), numbers, {.tokens = 9});
    std::vector<float> weights = drawn.call().weights;
    for (std::size_t i = 0; i < weights.size(); i += 3) weights[i] = i % 2 == 0 ? 0.0f : -weights[i];
    drawn.with_routing(drawn.call().ids, weights).check(backend());
  }
}

TEST_P(RoutingTest, EveryTopK) {
  for (int top_k = 1; top_k <= 6; ++top_k) {
    Case made = layer();
    made.spec.routed.top_k = made.spec.router.top_k = top_k;
    Problem(made, Numbers::noisy, {.tokens = 10}).check(backend());
    if (top_k <= 4) Problem(made, Numbers::exact, {.tokens = 10}).check(backend());
  }
}

TEST_P(RoutingTest, ManyExpertsForFewTokens) {
  Case made = layer();
  made.spec.routed.experts = made.spec.routed.local_experts = made.spec.router.experts = 70;
  Problem(made, Numbers::exact, {.tokens = 3}).check(backend());
}

/// A NaN or infinite input stays in its token.
TEST_P(RoutingTest, SpecialValuesStayInTheirToken) {
  const Case made = layer();
  for (const float special : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const Problem clean(made, Numbers::noisy, {.tokens = 7, .dtype = DType::f32});
    const Problem dirty = clean.with_value(3, 11, special);
    const Layer layer = clean.layer(backend());
    const Outputs want = clean.run(layer), got = dirty.run(layer);
    const std::size_t hidden = static_cast<std::size_t>(made.spec.hidden());
    for (std::size_t i = 0; i < want.experts_out.size(); ++i) {
      if (i / hidden == 3) continue;
      EXPECT_EQ(got.experts_out[i], want.experts_out[i]) << i;
      EXPECT_EQ(got.block_out[i], want.block_out[i]) << i;
    }
    dirty.expect_right(got);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RoutingTest, ::testing::ValuesIn(testing::usable_backends()), test_name);

}  // namespace
}  // namespace sluice::conformance
