// SPDX-License-Identifier: Apache-2.0
// Layer::enqueue_rows gives the bits of Layer::run_rows with counts and offsets on the card, and leaves the
// rows alone that are nobody's. A backend that is not batch invariant may take another kernel for the rows of
// the host: there both are held against the definition.
#include <array>
#include <cmath>

#include "testing/closeness.h"
#include "testing/draw.h"
#include "tests/conformance/ranks.h"
#include "tests/cuda/device_call.h"

namespace sluice {
namespace {

using conformance::Case;
using conformance::Dispatch;
using conformance::kUnwritten;
using conformance::Problem;
using on_card::Array;
using on_card::same_bits;
using testing::Numbers;

class CardRowsTest : public on_card::BackendTest {
 protected:
  /// Two experts' rows with a stride, some of which are nobody's, and no weights.
  void expect_bf16_rows(const Case& made, int max_tokens) const;

  /// Results of rows; those of nobody are kUnwritten on either side. A row's token is its slot's: the problem
  /// has one slot a token.
  void expect_right(const Problem& problem, const std::vector<std::int32_t>& slots,
                    const std::vector<float>& got, const std::vector<float>& of_host) const {
    if (batch_invariant()) {
      EXPECT_TRUE(same_bits(got, of_host));
      return;
    }
    const auto width = static_cast<std::size_t>(problem.spec().routed.hidden);
    std::vector<float> owned, owned_of_host;
    std::vector<double> want, magnitude;
    for (std::size_t r = 0; r < slots.size(); ++r)
      for (std::size_t i = r * width; i < (r + 1) * width; ++i) {
        if (slots[r] < 0) {
          EXPECT_EQ(got[i], kUnwritten);
          continue;
        }
        const std::size_t at = static_cast<std::size_t>(slots[r]) * width + i - r * width;
        owned.push_back(got[i]);
        owned_of_host.push_back(of_host[i]);
        want.push_back(problem.definition().experts_out[at]);
        magnitude.push_back(problem.definition().experts_magnitude[at]);
      }
    for (const auto* side : {&owned, &owned_of_host})
      conformance::expect_close(side == &owned ? "on the card" : "from the host",
                                {.got = *side,
                                 .want = want,
                                 .magnitude = magnitude,
                                 .width = static_cast<int>(width),
                                 .unit = testing::unit_of(backend().name)});
  }
};

/// One expert a token, whose weight is 1 where it is not on the input: what rows give.
Problem one_expert_each(Case made, testing::CallShape shape) {
  made.spec.routed.top_k = made.spec.router.top_k = 1;
  const Problem drawn(made, Numbers::noisy, shape);
  const std::vector<float> ones(static_cast<std::size_t>(shape.tokens), 1.0f);
  return drawn.with_routing(drawn.call().ids, made.spec.routed.weight_on_input ? drawn.call().weights : ones);
}

/// The rows on the card, `at_once` at a time, into an output that is kUnwritten before.
std::vector<float> enqueue(const Layer& layer, const Dispatch& rows, const float* weights, int at_once) {
  const int width = layer.plan().request.layer.routed.hidden, count = static_cast<int>(rows.slots.size());
  const Array<float> hidden(rows.hidden), row_weights(rows.weights);
  const Array<std::int32_t> offsets(rows.offsets), counts(rows.counts);
  const Array<float> output{std::vector<float>(rows.hidden.size(), kUnwritten)};
  const Array<std::byte> workspace(layer.device_rows_workspace_bytes(std::min(count, at_once)));
  const on_card::Stream stream;
  on_card::check(cudaDeviceSynchronize());
  layer.enqueue_rows({.hidden = {reinterpret_cast<const std::byte*>(hidden.get()), DType::f32, count, width,
                                 std::ptrdiff_t{width} * 4},
                      .offsets = rows.offsets.empty() ? nullptr : offsets.get(),
                      .counts = rows.counts.empty() ? nullptr : counts.get(),
                      .max_tokens = rows.max_tokens,
                      .weights = weights == nullptr ? nullptr : row_weights.get(),
                      .output = output.get(),
                      .workspace = workspace.span(),
                      .stream = stream.get()});
  stream.wait();
  return output.read();
}

std::vector<Case> cases(const Capability& can) {
  std::vector<Case> made;
  const std::vector<Activation> activations = conformance::members(can.activations);
  std::size_t next = 0;
  for (const Format format : conformance::members(can.weights)) {
    const Activation activation = activations[next++ % activations.size()];
    FeatureSet features = Features::set<feature::GateUpBias, feature::DownBias, feature::WeightOnInput>();
    if (next % 2 == 0) features = Features::set<feature::DownBias>();
    made.push_back(
        conformance::make_case(format, format, activation, features, {.hidden = 64, .intermediate = 96}));
  }
  return made;
}

TEST_P(CardRowsTest, BothLayoutsOfEveryFormat) {
  for (const Case& made : cases(backend().can)) {
    const Problem problem = one_expert_each(made, {.tokens = 26, .dtype = DType::f32});
    const Layer layer = layer_of(backend(), problem, problem.weights(), {2, 0, 5});
    for (const bool batched : {false, true}) {
      const auto mine = [&](std::int32_t slot) {
        const std::int32_t id = problem.call().ids[static_cast<std::size_t>(slot)];
        return id == 2 ? 0 : id == 0 ? 1 : -1;  // the third has no rows
      };
      Dispatch rows = dispatch(problem, {2, 0, 5}, batched, mine);
      Dispatch on_host = rows;
      run(layer, problem, on_host, 100);
      SCOPED_TRACE(made.name + (batched ? ", batched" : ", contiguous"));
      for (const int at_once : {1000, 5})
        expect_right(problem, rows.slots, enqueue(layer, rows, rows.weights.data(), at_once), on_host.output);
    }
  }
}

TEST_P(CardRowsTest, NobodyHasRows) {
  const Problem problem(cases(backend().can).front(), Numbers::noisy, {.tokens = 3, .dtype = DType::f32});
  const Layer layer = layer_of(backend(), problem, problem.weights(), {1, 2});
  for (const bool batched : {false, true}) {
    const Dispatch rows = dispatch(problem, {1, 2}, batched, [](std::int32_t) { return -1; });
    EXPECT_TRUE(same_bits(enqueue(layer, rows, nullptr, 1000), rows.output));
  }
}

void CardRowsTest::expect_bf16_rows(const Case& made, int max_tokens) const {
  const std::vector<std::int32_t> counts = {max_tokens - 1, max_tokens / 4};
  const int all = 2 * max_tokens;
  std::vector<std::int32_t> ids, slots;
  for (int row = 0; row < all; ++row) {
    const int local = row / max_tokens;
    const bool owned = row % max_tokens < counts[static_cast<std::size_t>(local)];
    ids.push_back(!owned ? 1 : local == 0 ? 0 : 3);
    slots.push_back(owned ? row : -1);
  }
  const std::vector<float> ones(static_cast<std::size_t>(all), 1.0f);
  const Problem problem = one_expert_each(made, {.tokens = all}).with_routing(ids, ones);
  const Layer layer = layer_of(backend(), problem, problem.weights(), {0, 3});
  const RowsView& given = problem.call().hidden;
  const auto elements = static_cast<std::size_t>(given.rows) * static_cast<std::size_t>(given.width);
  std::vector<float> want(elements, kUnwritten);
  std::vector<std::byte> workspace(layer.rows_workspace_bytes(all));
  layer.run_rows({.hidden = given,
                  .counts = counts,
                  .max_tokens = max_tokens,
                  .output = want.data(),
                  .workspace = workspace});
  const Array<std::byte> rows(problem.call().rows), there(layer.device_rows_workspace_bytes(all));
  const Array<std::int32_t> counts_there(counts);
  const Array<float> output{std::vector<float>(elements, kUnwritten)};
  RowsView view = given;
  view.data = rows.get();
  layer.enqueue_rows({.hidden = view,
                      .counts = counts_there.get(),
                      .max_tokens = max_tokens,
                      .output = output.get(),
                      .workspace = there.span()});
  expect_right(problem, slots, output.read(), want);
}

TEST_P(CardRowsTest, Bf16RowsAreReadWhereTheyAre) {
  for (const Case& made : cases(backend().can)) {
    SCOPED_TRACE(made.name);
    for (const int max_tokens : {4, 40}) expect_bf16_rows(made, max_tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CardRowsTest, ::testing::ValuesIn(on_card::known_backends()),
                         conformance::test_name);

}  // namespace
}  // namespace sluice
