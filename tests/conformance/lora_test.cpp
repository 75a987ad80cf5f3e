// SPDX-License-Identifier: Apache-2.0
// Adapters: the delta's place before the clamp, what it equals, and that tokens do not see each other's. That
// every format and activation takes adapters of mixed ranks is declared_test's business.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>

#include "format/scales.h"
#include "routing/group.h"
#include "testing/closeness.h"
#include "testing/device_for.h"
#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"

namespace sluice::conformance {
namespace {

using testing::Numbers;

class LoraTest : public ::testing::TestWithParam<const Backend*> {
 protected:
  void SetUp() override {
    if (!backend().can.features.has(Features::of<feature::Lora>())) GTEST_SKIP() << "declares no lora";
  }
  const Backend& backend() const { return *GetParam(); }
  std::vector<Format> formats() const { return members(backend().can.weights); }
  Case plain(Format format) const {
    return make_case(format, format, members(backend().can.activations).front(),
                     Features::set<feature::Lora>());
  }
};

std::vector<double> multiplied(const WeightMatrix& weight, const std::vector<double>& x) {
  std::vector<double> row(x.size()), out;
  for (std::int64_t i = 0; i < weight.rows; ++i) {
    decode_row(weight, i, row.data());
    double sum = 0;
    for (std::size_t k = 0; k < x.size(); ++k) sum += row[k] * x[k];
    out.push_back(sum);
  }
  return out;
}

std::vector<double> multiplied(const LoraMatrix& matrix, const std::vector<double>& x) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    double sum = 0;
    for (std::int64_t k = 0; k < matrix.cols; ++k)
      sum += x[static_cast<std::size_t>(k)] *
             format::read_number(matrix.dtype, matrix.data + i * matrix.row_stride + k * matrix.col_stride);
    out.push_back(sum);
  }
  return out;
}

std::vector<double> delta_of(const LoraDelta& delta, const std::vector<double>& x, std::size_t rows) {
  if (!delta) return std::vector<double>(rows);
  std::vector<double> out = multiplied(delta.b, multiplied(delta.a, x));
  for (double& value : out) value *= delta.scale;
  return out;
}

/// What a backend would answer that clamps gate and up first and adds the delta then.
std::vector<double> delta_after_the_clamp(const Problem& problem) {
  const ExpertsSpec& spec = problem.spec().routed;
  const RowsView& hidden = problem.call().hidden;
  ActivationParams unlimited = spec.params;
  unlimited.limit = std::numeric_limits<float>::infinity();
  const double limit = spec.params.limit;
  std::vector<double> out;
  for (int token = 0; token < hidden.rows; ++token) {
    std::vector<double> x, y(static_cast<std::size_t>(spec.hidden));
    for (int k = 0; k < spec.hidden; ++k)
      x.push_back(format::read_number(hidden.dtype, hidden.data + token * hidden.row_stride +
                                                        std::ptrdiff_t{k} * bits(hidden.dtype) / 8));
    for (int j = 0; j < spec.top_k; ++j) {
      const std::size_t slot = static_cast<std::size_t>(token * spec.top_k + j);
      const std::size_t id = static_cast<std::size_t>(problem.call().ids[slot]);
      const ExpertWeights& expert = problem.weights().routed[id];
      const std::int32_t adapter = problem.lora().ids[static_cast<std::size_t>(token)];
      const LoraExpert added =
          adapter < 0 ? LoraExpert() : problem.lora().adapters[static_cast<std::size_t>(adapter)].routed[id];
      const std::size_t width = static_cast<std::size_t>(spec.intermediate);
      std::vector<double> gate(width), mid = multiplied(expert.up, x);
      if (expert.gate) gate = multiplied(*expert.gate, x);
      const std::vector<double> gate_delta = delta_of(added.gate, x, width);
      const std::vector<double> up_delta = delta_of(added.up, x, width);
      for (std::size_t i = 0; i < width; ++i)
        mid[i] = Activations::visit(spec.activation, [&]<class A>() {
          return A::apply(std::min(gate[i], limit) + gate_delta[i],
                          std::clamp(mid[i], -limit, limit) + up_delta[i], unlimited);
        });
      const std::vector<double> down = multiplied(expert.down, mid);
      const std::vector<double> down_delta = delta_of(added.down, mid, y.size());
      for (std::size_t o = 0; o < y.size(); ++o)
        y[o] += problem.call().weights[slot] * (down[o] + down_delta[o]);
    }
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

TEST_P(LoraTest, TheDeltaComesBeforeTheClamp) {
  const Feature limit = Features::of<feature::Limit>();
  if (!backend().can.features.has(limit)) GTEST_SKIP() << "declares no limit";
  for (const Activation activation : members(backend().can.activations)) {
    if (!applicable(backend().can.features, activation).has(limit)) continue;
    for (const Format format : formats()) {
      Case made = make_case(format, format, activation, Features::set<feature::Lora, feature::Limit>());
      made.spec.routed.params.limit = 2;  // the deltas are about as large
      const Problem problem(made, Numbers::noisy, {.tokens = 6});
      const Outputs out = problem.run(problem.layer(backend()));
      problem.expect_right(out);
      const std::vector<double> wrong = delta_after_the_clamp(problem);
      EXPECT_FALSE(testing::closeness({.got = out.experts_out,
                                       .want = wrong,
                                       .magnitude = problem.definition().experts_magnitude,
                                       .width = made.spec.routed.hidden,
                                       .unit = testing::kBf16Unit})
                       .ok())
          << problem.name() << ": an output with the delta behind the clamp would pass";
    }
  }
}

/// The largest |a - b| as a part of the largest |b|.
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    size = std::max(size, std::abs(b[i]));
  }
  return difference / size;
}

std::vector<double> minus(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<double> out;
  for (std::size_t i = 0; i < a.size(); ++i) out.push_back(double{a[i]} - double{b[i]});
  return out;
}

TEST_P(LoraTest, OnMinusOffIsTheMergedDifference) {
  if (testing::rounding_of(backend().name) != testing::Rounding::none)
    GTEST_SKIP() << "merged weights see other roundings than the layer and its adapter apart; ManyTokens and "
                    "the cells have adapters";
  for (const Format format : formats()) {
    const Problem problem =
        Problem(plain(format), Numbers::noisy, {.tokens = 4}).with_adapter_ids({0, 0, 0, 0});
    const ExpertsSpec& spec = problem.spec().routed;
    LayerWeights weights = problem.weights();
    std::vector<std::unique_ptr<format::Encoded>> owner;
    const auto merge = [&](WeightMatrix& matrix, const LoraDelta& delta) {
      const std::vector<float> values = testing::merged(matrix, delta);
      owner.push_back(std::make_unique<format::Encoded>(
          encode(Formats::of<format::F32>(), values.data(), matrix.rows, matrix.cols)));
      matrix = owner.back()->matrix;
    };
    for (std::size_t e = 0; e < weights.routed.size(); ++e) {
      const LoraExpert& delta = problem.lora().adapters[0].routed[e];
      if (weights.routed[e].gate) merge(*weights.routed[e].gate, delta.gate);
      merge(weights.routed[e].up, delta.up);
      merge(weights.routed[e].down, delta.down);
    }
    LayerSpec spec_of_merged = problem.spec();
    spec_of_merged.routed.lora_rank = 0;
    const Format plain = Formats::of<format::F32>();
    spec_of_merged.routed.formats = {
        .gate = spec.formats.gate ? std::optional(plain) : std::nullopt, .up = plain, .down = plain};
    const std::string in_float32 =
        backend().can.weights.has(plain) ? std::string(backend().name) : "reference";
    const Layer merged(choose({.layer = spec_of_merged,
                               .device = testing::device_for(in_float32),
                               .tokens = {1},
                               .by_name = in_float32}),
                       weights, {.executor = make_thread_team(2)});
    std::vector<float> merged_out(static_cast<std::size_t>(4 * spec.hidden));
    std::vector<std::byte> workspace(merged.workspace_bytes(4));
    merged.run({.hidden = problem.call().hidden,
                .routing = problem.call().routing(spec.top_k),
                .experts_out = merged_out.data(),
                .workspace = workspace});

    const Layer layer = problem.layer(backend());
    const std::vector<float> on = problem.run(layer).experts_out;
    const std::vector<float> off = problem.with_adapter_ids({-1, -1, -1, -1}).run(layer).experts_out;
    const std::vector<double> difference = minus(on, off);
    // Of two intermediates that are rounded apart, each by half a unit at most.
    const double unit = testing::unit_of(backend().name);
    EXPECT_LT(apart(difference, minus(merged_out, off)), unit == testing::kFloat32Unit ? 1e-5 : unit)
        << problem.name();
    EXPECT_GT(apart(minus(off, off), difference), 0.9) << "the adapter does nothing";
  }
}

/// A token with an adapter, alone and among others, and in parts, has the same bits where the backend says
/// so; a token without one has those of a call without adapters.
TEST_P(LoraTest, TokensDoNotSeeEachOther) {
  for (const Format format : formats()) {
    const Problem problem(plain(format), Numbers::noisy, {.tokens = 7});
    const Layer layer = problem.layer(backend());
    const Outputs together = problem.run(layer);
    for (const int at_once : {1, 2, 5}) {
      const Outputs parts = problem.run(layer, at_once);
      problem.expect_right(parts);
      if (!testing::is_batch_invariant(backend())) continue;
      EXPECT_EQ(parts, together) << problem.name() << ", " << at_once << " at once";
    }
    for (const int threads : {1, 3})
      EXPECT_EQ(problem.run(problem.layer(backend(), threads)), together)
          << problem.name() << ", " << threads << " threads";

    const std::vector<float> none =
        problem.with_adapter_ids(std::vector<std::int32_t>(7, -1)).run(layer).experts_out;
    const std::vector<float> no_ids = problem.with_adapter_ids({}).run(layer).experts_out;
    EXPECT_EQ(none, no_ids) << problem.name();
    const std::ptrdiff_t hidden = problem.spec().routed.hidden;
    for (std::ptrdiff_t token = 0; token < 7; ++token) {
      const bool same = std::equal(none.begin() + token * hidden, none.begin() + (token + 1) * hidden,
                                   together.experts_out.begin() + token * hidden);
      EXPECT_EQ(same, problem.lora().ids[static_cast<std::size_t>(token)] < 0)
          << problem.name() << ", token " << token;
    }
  }
}

/// Of more tokens than a kernel for few of them takes, in experts of many and of few.
TEST_P(LoraTest, ManyTokens) {
  for (const Format format : formats()) {
    const Case made = make_case(format, format, members(backend().can.activations).front(),
                                Features::set<feature::Lora>(), {.hidden = 64, .intermediate = 96});
    const Problem problem(made, Numbers::noisy, {.tokens = 90});
    const Layer layer = problem.layer(backend());
    const Outputs together = problem.run(layer);
    problem.expect_right(together);
    const Outputs parts = problem.run(layer, 66);
    problem.expect_right(parts);
    if (!testing::is_batch_invariant(backend())) continue;
    EXPECT_EQ(parts, together) << problem.name();
  }
}

/// The same numbers with gaps in and between rows.
class Spread {
 public:
  LoraAdapter operator()(LoraAdapter adapter) {
    for (LoraExpert& expert : adapter.routed)
      for (LoraDelta* delta : {&expert.gate, &expert.up, &expert.down})
        if (*delta) {
          spread(delta->a);
          spread(delta->b);
        }
    return adapter;
  }

 private:
  void spread(LoraMatrix& matrix) {
    const std::ptrdiff_t width = bits(matrix.dtype) / 8, col = 2 * width, row = col * matrix.cols + width;
    memory_.emplace_back(static_cast<std::size_t>(row * matrix.rows), std::byte{0xFF});
    for (std::int64_t i = 0; i < matrix.rows; ++i)
      for (std::int64_t k = 0; k < matrix.cols; ++k)
        std::copy_n(matrix.data + i * matrix.row_stride + k * matrix.col_stride, width,
                    memory_.back().data() + i * row + k * col);
    matrix.data = memory_.back().data();
    matrix.row_stride = row;
    matrix.col_stride = col;
  }

  std::list<std::vector<std::byte>> memory_;
};

TEST_P(LoraTest, AnyStrides) {
  const Problem problem(plain(formats().front()), Numbers::noisy, {.tokens = 7});
  const Layer layer = problem.layer(backend());
  Spread spread;
  std::vector<LoraAdapter> apart;
  for (const LoraAdapter& adapter : problem.lora().adapters) apart.push_back(spread(adapter));
  EXPECT_EQ(problem.run(layer, 0, apart), problem.run(layer));
}

INSTANTIATE_TEST_SUITE_P(Backends, LoraTest, ::testing::ValuesIn(testing::usable_backends()), test_name);

}  // namespace
}  // namespace sluice::conformance
