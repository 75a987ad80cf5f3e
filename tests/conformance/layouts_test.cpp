// SPDX-License-Identifier: Apache-2.0
// Rows that are already with their experts, and experts that are spread over ranks: in every layout that a
// backend declares the rows, summed in order, are the flat call's result to the bit. And the batch invariance
// that it declares.
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

namespace sluice::conformance {
namespace {

using testing::Numbers;

constexpr float kUnwritten = -12345;

/// What one rank holds: global expert ids, in the order of its weights.
using Rank = std::vector<std::int32_t>;

class LayoutsTest : public ::testing::TestWithParam<const Backend*> {};

/// The layer on one rank.
Layer layer_of(const Backend& backend, const Problem& problem, const LayerWeights& weights,
               const Rank& rank) {
  LayerSpec spec = problem.spec();
  spec.shared.reset();
  spec.routed.local_experts = static_cast<int>(rank.size());
  LayerWeights here;
  std::vector<OtherFormats> others;
  here.owner = weights.owner;
  std::vector<std::int32_t> map(static_cast<std::size_t>(spec.routed.experts), -1);
  for (std::size_t i = 0; i < rank.size(); ++i) {
    map[static_cast<std::size_t>(rank[i])] = static_cast<std::int32_t>(i);
    here.routed.push_back(weights.routed[static_cast<std::size_t>(rank[i])]);
    const MatrixFormats& formats = problem.spec().routed.formats_of(rank[i]);
    if (formats != spec.routed.formats) others.push_back({static_cast<std::int32_t>(i), formats});
  }
  spec.routed.others = others;
  const bool all_here = spec.routed.local_experts == spec.routed.experts;
  return Layer(choose({.layer = spec,
                       .device = detect(),
                       .tokens = {1},
                       .by_name = std::string(backend.name),
                       .calls = members(backend.can.calls)}),
               here,
               {.expert_map = all_here ? std::vector<std::int32_t>() : map, .executor = make_thread_team(2)});
}

/// Rows of one rank in one layout, with NaN where nobody may read and kUnwritten where nobody may write.
struct Dispatch {
  std::vector<float> hidden, output, weights;
  std::vector<std::int32_t> offsets, counts;
  int max_tokens = 0;
  std::vector<std::int32_t> adapter_ids;
  std::vector<std::int32_t> slots;  // of each row, -1 for none
};

/// The slots for which `mine(slot)` gives a local expert.
template <class Mine>
Dispatch dispatch(const Problem& problem, int local_experts, bool batched, Mine mine) {
  const int hidden = problem.spec().routed.hidden, top_k = problem.spec().routed.top_k;
  std::vector<std::vector<std::int32_t>> of(static_cast<std::size_t>(local_experts));
  for (std::int32_t slot = 0; slot < std::ssize(problem.call().ids); ++slot)
    if (const int e = mine(slot); e >= 0) of[static_cast<std::size_t>(e)].push_back(slot);
  Dispatch made;
  std::size_t most = 0;
  for (const auto& slots : of) most = std::max(most, slots.size());
  made.max_tokens = static_cast<int>(most) + 2;
  if (!batched) made.offsets.push_back(0);
  for (const auto& slots : of) {
    made.slots.insert(made.slots.end(), slots.begin(), slots.end());
    if (batched) {
      made.counts.push_back(static_cast<std::int32_t>(slots.size()));
      made.slots.resize(made.counts.size() * static_cast<std::size_t>(made.max_tokens), -1);
    } else {
      made.offsets.push_back(static_cast<std::int32_t>(made.slots.size()));
    }
  }
  if (!batched) made.slots.insert(made.slots.end(), 3, -1);  // rows after the last expert's
  made.hidden.assign(made.slots.size() * hidden, std::numeric_limits<float>::quiet_NaN());
  made.output.assign(made.hidden.size(), kUnwritten);
  made.weights.assign(made.slots.size(), 1.0f);
  const std::vector<std::int32_t>& adapters = problem.lora().ids;
  if (!adapters.empty()) made.adapter_ids.assign(made.slots.size(), 77);  // nobody may look
  for (std::size_t r = 0; r < made.slots.size(); ++r) {
    if (made.slots[r] < 0) continue;
    std::memcpy(made.hidden.data() + r * hidden,
                problem.call().hidden.data + made.slots[r] / top_k * problem.call().hidden.row_stride,
                hidden * sizeof(float));
    if (!adapters.empty()) made.adapter_ids[r] = adapters[static_cast<std::size_t>(made.slots[r] / top_k)];
    if (problem.spec().routed.weight_on_input)
      made.weights[r] = problem.call().weights[static_cast<std::size_t>(made.slots[r])];
  }
  return made;
}

void run(const Layer& layer, const Problem& problem, Dispatch& rows, int at_once) {
  const int hidden = problem.spec().routed.hidden, count = static_cast<int>(rows.slots.size());
  std::vector<std::byte> workspace(layer.rows_workspace_bytes(at_once));
  const std::vector<const LoraAdapter*> adapters =
      rows.adapter_ids.empty() ? std::vector<const LoraAdapter*>() : problem.lora().pointers();
  layer.run_rows({.hidden = {reinterpret_cast<const std::byte*>(rows.hidden.data()), DType::f32, count,
                             hidden, std::ptrdiff_t{hidden} * 4},
                  .offsets = rows.offsets,
                  .counts = rows.counts,
                  .max_tokens = rows.counts.empty() ? 0 : rows.max_tokens,
                  .weights = rows.weights.data(),
                  .adapters = adapters,
                  .adapter_ids = rows.adapter_ids,
                  .output = rows.output.data(),
                  .workspace = workspace});
}

/// All ranks in one layout, then the ordered sum. Where several ranks hold an expert they take turns.
std::vector<float> over_ranks(const Backend& backend, const Problem& problem, const LayerWeights& weights,
                              const std::vector<Rank>& ranks, bool batched, int at_once) {
  const int hidden = problem.spec().routed.hidden, top_k = problem.spec().routed.top_k;
  const auto& ids = problem.call().ids;
  std::vector<float> rows;
  std::vector<std::int32_t> row_of_slot(ids.size(), -1);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Layer layer = layer_of(backend, problem, weights, ranks[r]);
    Dispatch made = dispatch(problem, static_cast<int>(ranks[r].size()), batched, [&](std::int32_t slot) {
      std::vector<std::size_t> holders;
      for (std::size_t other = 0; other < ranks.size(); ++other)
        if (std::ranges::find(ranks[other], ids[static_cast<std::size_t>(slot)]) != ranks[other].end())
          holders.push_back(other);
      if (holders.empty() || holders[static_cast<std::size_t>(slot) % holders.size()] != r) return -1;
      return static_cast<int>(std::ranges::find(ranks[r], ids[static_cast<std::size_t>(slot)]) -
                              ranks[r].begin());
    });
    run(layer, problem, made, at_once);
    for (std::size_t i = 0; i < made.slots.size(); ++i) {
      const float* row = made.output.data() + i * hidden;
      if (made.slots[i] >= 0)
        row_of_slot[static_cast<std::size_t>(made.slots[i])] =
            static_cast<std::int32_t>(rows.size()) / hidden + static_cast<std::int32_t>(i);
      else
        EXPECT_EQ(std::count(row, row + hidden, kUnwritten), hidden) << "a row of nobody was written";
    }
    rows.insert(rows.end(), made.output.begin(), made.output.end());
  }
  std::vector<float> out(static_cast<std::size_t>(problem.call().hidden.rows) * hidden, kUnwritten);
  Routing routing = problem.call().routing(top_k);
  if (problem.spec().routed.weight_on_input) routing.weights = nullptr;
  combine(routing, row_of_slot, rows.data(), hidden, out.data());
  return out;
}

/// Equal as numbers: a sum of one term from 0 may differ from the term in the sign of a zero.
::testing::AssertionResult same(const std::vector<float>& want, const std::vector<float>& got) {
  for (std::size_t i = 0; i < want.size(); ++i)
    if (got[i] != want[i])
      return ::testing::AssertionFailure() << "element " << i << ": got " << got[i] << ", want " << want[i];
  return ::testing::AssertionSuccess();
}

/// The flat call's bits; of the definition, which sums a token in double and rounds once where the ordered
/// sum rounds every term, the definition within roundings.
::testing::AssertionResult right(const Backend& backend, const Problem& problem,
                                 const std::vector<float>& flat, const std::vector<float>& got) {
  if (!backend.only_by_name) return same(flat, got);
  const testing::Closeness close = testing::closeness({.got = got,
                                                       .want = problem.definition().experts_out,
                                                       .magnitude = problem.definition().experts_magnitude,
                                                       .width = problem.spec().routed.hidden});
  return (close.ok() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure()) << close.str();
}

/// Every format and every activation with all features that apply, six experts here.
std::vector<Case> cases(const Capability& can) {
  std::vector<Case> made;
  FeatureSet features = can.features;
  features = features.minus(
      FeatureSet().add(Features::of<feature::ExpertMap>()).add(Features::of<feature::SharedExpert>()));
  features = features.minus(FeatureSet().add(Features::of<feature::MixedFormats>()));
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

std::vector<Rank> one_rank() { return {{0, 1, 2, 3, 4, 5}}; }

TEST_P(LayoutsTest, EveryLayoutGivesTheFlatBits) {
  const Backend& backend = *GetParam();
  for (const bool batched : {false, true}) {
    const CallMode mode = batched ? CallModes::of<call::Batched>() : CallModes::of<call::Contiguous>();
    if (!backend.can.calls.has(mode)) continue;
    for (const Case& made : cases(backend.can)) {
      const Problem problem(made, Numbers::noisy, {.tokens = 7, .dtype = DType::f32});
      const std::vector<float> flat = problem.run(problem.layer(backend)).experts_out;
      for (const int at_once : {100, 5})
        EXPECT_TRUE(right(backend, problem, flat,
                          over_ranks(backend, problem, problem.weights(), one_rank(), batched, at_once)))
            << made.name << (batched ? ", batched, " : ", contiguous, ") << at_once << " rows at once";
    }
  }
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
    const Case made = make_case(format, format, members(backend.can.activations).front(), features);
    const Problem problem(made, Numbers::noisy, {.tokens = 9, .dtype = DType::f32});
    const std::vector<float> flat = problem.run(problem.layer(backend)).experts_out;
    for (const std::vector<Rank>& ranks : maps)
      for (const bool batched : {false, true})
        EXPECT_TRUE(right(backend, problem, flat,
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
  Dispatch rows = dispatch(problem, 2, true, [](std::int32_t) { return -1; });
  run(layer, problem, rows, 1);
  EXPECT_EQ(std::ranges::count(rows.output, kUnwritten), std::ssize(rows.output));
}

TEST_P(LayoutsTest, BatchInvariance) {
  const Backend& backend = *GetParam();
  if (!backend.can.calls.has(CallModes::of<call::BatchInvariant>())) GTEST_SKIP() << "declares no invariance";
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
