// SPDX-License-Identifier: Apache-2.0
// Layer::enqueue_rows gives the bits of Layer::run_rows with counts and offsets on the card, and leaves the
// rows alone that are nobody's.
#include <array>
#include <cmath>

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

class CardRowsTest : public on_card::Test {
 protected:
  static const Backend& backend() { return *on_card::backends().front(); }
};

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

TEST_F(CardRowsTest, BothLayoutsOfEveryFormat) {
  for (const Case& made : cases(backend().can)) {
    const Problem problem(made, Numbers::noisy, {.tokens = 13, .dtype = DType::f32});
    const Layer layer = layer_of(backend(), problem, problem.weights(), {2, 0, 5});
    for (const bool batched : {false, true}) {
      const auto mine = [&](std::int32_t slot) {
        const std::int32_t id = problem.call().ids[static_cast<std::size_t>(slot)];
        return id == 2 ? 0 : id == 0 ? 1 : -1;  // the third has no rows
      };
      Dispatch rows = dispatch(problem, {2, 0, 5}, batched, mine);
      Dispatch on_host = rows;
      run(layer, problem, on_host, 100);
      const std::string what = made.name + (batched ? ", batched" : ", contiguous");
      EXPECT_TRUE(same_bits(enqueue(layer, rows, rows.weights.data(), 1000), on_host.output)) << what;
      EXPECT_TRUE(same_bits(enqueue(layer, rows, rows.weights.data(), 5), on_host.output)) << what;
    }
  }
}

TEST_F(CardRowsTest, NobodyHasRows) {
  const Problem problem(cases(backend().can).front(), Numbers::noisy, {.tokens = 3, .dtype = DType::f32});
  const Layer layer = layer_of(backend(), problem, problem.weights(), {1, 2});
  for (const bool batched : {false, true}) {
    const Dispatch rows = dispatch(problem, {1, 2}, batched, [](std::int32_t) { return -1; });
    EXPECT_TRUE(same_bits(enqueue(layer, rows, nullptr, 1000), rows.output));
  }
}

TEST_F(CardRowsTest, Bf16RowsAreReadWhereTheyAre) {
  const Problem problem(cases(backend().can).front(), Numbers::noisy, {.tokens = 8});
  const Layer layer = layer_of(backend(), problem, problem.weights(), {0, 3});
  const RowsView& given = problem.call().hidden;
  const std::vector<std::int32_t> counts = {3, 1};
  const auto elements = static_cast<std::size_t>(given.rows) * static_cast<std::size_t>(given.width);
  std::vector<float> want(elements, kUnwritten);
  std::vector<std::byte> workspace(layer.rows_workspace_bytes(8));
  layer.run_rows(
      {.hidden = given, .counts = counts, .max_tokens = 4, .output = want.data(), .workspace = workspace});
  const Array<std::byte> rows(problem.call().rows), there(layer.device_rows_workspace_bytes(8));
  const Array<std::int32_t> counts_there(counts);
  const Array<float> output{std::vector<float>(elements, kUnwritten)};
  RowsView view = given;
  view.data = rows.get();
  layer.enqueue_rows({.hidden = view,
                      .counts = counts_there.get(),
                      .max_tokens = 4,
                      .output = output.get(),
                      .workspace = there.span()});
  EXPECT_TRUE(same_bits(output.read(), want));
}

}  // namespace
}  // namespace sluice
