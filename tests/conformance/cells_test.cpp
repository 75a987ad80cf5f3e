// SPDX-License-Identifier: Apache-2.0
// The cells of docs/support.md: every format x activation of a backend is a test of that name, and runs in
// every declared layout, without and with adapters, with every parameter and bias that applies.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "testing/usable_backends.h"
#include "tests/conformance/ranks.h"

namespace sluice::conformance {
namespace {

struct Cell {
  const Backend* backend;
  Format format;
  Activation activation;
};

std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const Backend* backend : testing::usable_backends())
    for (const Format format : members(backend->can.weights))
      for (const Activation activation : members(backend->can.activations))
        all.push_back({backend, format, activation});
  return all;
}

class CellTest : public ::testing::TestWithParam<Cell> {
 protected:
  const Backend& backend() const { return *GetParam().backend; }
  /// All that applies in every layout: experts of ranks have no shared one and no map.
  FeatureSet features() const {
    const FeatureSet elsewhere = Features::set<feature::ExpertMap, feature::SharedExpert,
                                               feature::MixedFormats, feature::MixedGateUp, feature::Lora>();
    return applicable(backend().can.features.minus(elsewhere), GetParam().activation);
  }
  void check(FeatureSet features) const {
    const Case made = make_case(GetParam().format, GetParam().format, GetParam().activation,
                                applicable(features, GetParam().format), {.hidden = 64, .intermediate = 96});
    SCOPED_TRACE(made.name);
    const Problem problem(made, testing::Numbers::noisy, {.tokens = 7, .dtype = DType::f32});
    const Outputs flat = problem.run(problem.layer(backend()));
    problem.expect_right(flat);
    Rank all(static_cast<std::size_t>(made.spec.routed.experts));
    std::iota(all.begin(), all.end(), 0);
    for (const bool batched : {false, true}) {
      const CallMode mode = batched ? CallModes::of<call::Batched>() : CallModes::of<call::Contiguous>();
      if (!backend().can.calls.has(mode)) continue;
      for (const int rows_at_once : {100, 5})
        EXPECT_TRUE(is_right(backend(), problem, flat.experts_out,
                             over_ranks(backend(), problem, problem.weights(), {all}, batched, rows_at_once)))
            << mode.str() << ", " << rows_at_once << " rows at once";
    }
  }
};

TEST_P(CellTest, EveryLayout) { check(features()); }

TEST_P(CellTest, EveryLayoutWithAdapters) {
  const FeatureSet lora = Features::set<feature::Lora>();
  if (!lora.minus(backend().can.features).empty()) GTEST_SKIP() << "declares no lora";
  FeatureSet with = features();
  check(with.add(Features::of<feature::Lora>()));
}

std::string cell_name(const ::testing::TestParamInfo<Cell>& info) {
  std::string name = std::string(info.param.backend->name) + "_" + std::string(info.param.format.str()) +
                     "_" + std::string(info.param.activation.str());
  std::ranges::replace(name, '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Support, CellTest, ::testing::ValuesIn(cells()), cell_name);

}  // namespace
}  // namespace sluice::conformance
