// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/toy.h"

#include <cmath>

#include "sluice/error.h"
#include "testing/rounding.h"
#include "testing/usable_backends.h"

namespace sluice::reports {
namespace {

struct Owner {
  std::vector<std::shared_ptr<const void>> parts;
};

/// Gives a layer memory of its own, one part after the other.
class Maker {
 public:
  explicit Maker(std::shared_ptr<Owner> owner) : owner_(std::move(owner)) {}

  ExpertWeights expert(const ExpertsSpec& spec, const Expert& numbers) {
    const Size wide{spec.intermediate, spec.hidden}, tall{spec.hidden, spec.intermediate};
    const MatrixFormats& formats = spec.formats;
    ExpertWeights made{.gate = {},
                       .up = matrix_of(formats.up, wide, numbers.up, formats.up_grouping),
                       .down = matrix_of(formats.down, tall, numbers.down, formats.down_grouping)};
    if (formats.gate) made.gate = matrix_of(*formats.gate, wide, numbers.gate, formats.gate_grouping);
    if (spec.gate_up_bias) {
      made.up_bias = bias(numbers.up_bias, spec.intermediate);
      if (formats.gate) made.gate_bias = bias(numbers.gate_bias, spec.intermediate);
    }
    if (spec.down_bias) made.down_bias = bias(numbers.down_bias, spec.hidden);
    return made;
  }

 private:
  WeightMatrix matrix_of(Format format, Size size, const std::vector<Entry>& entries,
                         const Grouping& grouping) {
    auto made = shared(matrix(format, size, entries, grouping));
    owner_->parts.push_back(made);
    return made->matrix;
  }
  VectorView bias(std::vector<float> values, int size) {
    values.resize(static_cast<std::size_t>(size));
    auto made = std::make_shared<std::vector<float>>(std::move(values));
    owner_->parts.push_back(made);
    return {reinterpret_cast<const std::byte*>(made->data()), DType::f32, size, 4};
  }

  std::shared_ptr<Owner> owner_;
};

}  // namespace

LayerSpec spec_of(Format format, Activation activation, const ActivationParams& params, const Shape& shape) {
  const Grouping grouping{.columns = is_integer(format) ? 32 : 0};
  LayerSpec spec{
      .routed = {.hidden = shape.hidden,
                 .intermediate = shape.intermediate,
                 .experts = shape.experts,
                 .local_experts = shape.experts,
                 .top_k = shape.top_k,
                 .formats = {.gate = format,
                             .up = format,
                             .down = format,
                             .gate_grouping = grouping,
                             .up_grouping = grouping,
                             .down_grouping = grouping},
                 .activation = activation,
                 .params = params},
      .router = {.score = *Score::parse("softmax"), .experts = shape.experts, .top_k = shape.top_k}};
  if (!is_gated(activation)) {
    spec.routed.formats.gate.reset();
    spec.routed.formats.gate_grouping = {};
  }
  return spec;
}

Toy make(LayerSpec spec, const std::vector<Expert>& routed, const Expert* shared_expert) {
  spec.routed.gate_up_bias = !routed.empty() && !routed[0].up_bias.empty();
  spec.routed.down_bias = !routed.empty() && !routed[0].down_bias.empty();
  if (shared_expert != nullptr && !spec.shared) {
    spec.shared = SharedSpec{.experts = spec.routed};
    ExpertsSpec& only = spec.shared->experts;
    only.experts = only.local_experts = only.top_k = 1;
  }
  const auto owner = std::make_shared<Owner>();
  Maker maker(owner);
  Toy toy{.spec = spec, .weights = {}};
  for (const Expert& expert : routed) toy.weights.routed.push_back(maker.expert(spec.routed, expert));
  if (shared_expert != nullptr) {
    ExpertsSpec& only = toy.spec.shared->experts;
    only.gate_up_bias = !shared_expert->up_bias.empty();
    only.down_bias = !shared_expert->down_bias.empty();
    toy.weights.shared.push_back(maker.expert(only, *shared_expert));
  }
  toy.weights.owner = owner;
  return toy;
}

void keep(Toy& toy, std::shared_ptr<const void> more) {
  auto both = std::make_shared<Owner>();
  both->parts = {toy.weights.owner, std::move(more)};
  toy.weights.owner = both;
}

Toy make_interleaved(const LayerSpec& spec, const Expert& expert) {
  Toy toy = make(spec, {expert});
  std::vector<Entry> entries;
  for (const Entry& entry : expert.gate) entries.push_back({2 * entry.row, entry.col, entry.value});
  for (const Entry& entry : expert.up) entries.push_back({2 * entry.row + 1, entry.col, entry.value});
  const auto both = shared(matrix(spec.routed.formats.up, {2 * spec.routed.intermediate, spec.routed.hidden},
                                  entries, spec.routed.formats.up_grouping));
  toy.weights.routed[0].gate = every_second_row(both->matrix, 0);
  toy.weights.routed[0].up = every_second_row(both->matrix, 1);
  keep(toy, both);
  return toy;
}

Expert toy_expert(const std::vector<Pair>& rows, int hidden) {
  Expert expert;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto at = static_cast<std::int64_t>(32 * i);
    expert.gate.push_back({at, 0, rows[i].gate});
    expert.up.push_back({at, 0, rows[i].up});
  }
  expert.down = identity(hidden);
  return expert;
}

Toy down_probe(std::shared_ptr<format::Encoded> down) {
  const WeightMatrix& matrix = down->matrix;
  LayerSpec spec =
      spec_of(matrix.format, kRelu2, {},
              {.hidden = static_cast<int>(matrix.rows), .intermediate = static_cast<int>(matrix.cols)});
  spec.routed.formats.down_grouping = matrix.integers.grouping;
  Toy toy = make(spec, {Expert{.gate = {}, .up = {{0, 0, 1}}, .down = {}}});
  toy.weights.routed[0].down = matrix;
  keep(toy, std::move(down));
  return toy;
}

Expert linear_expert(double factor) {
  return {.gate = {{0, 1, 64}}, .up = {{0, 0, factor}}, .down = {{0, 0, 1.0 / 64}}};
}

Call linear_call(const std::vector<float>& x, int hidden) {
  Call call = one_hot(hidden, static_cast<int>(x.size()));
  for (std::size_t t = 0; t < x.size(); ++t) {
    call.hidden[t * static_cast<std::size_t>(hidden)] = x[t];
    call.hidden[t * static_cast<std::size_t>(hidden) + 1] = 1;
  }
  return call;
}

Plan plan_on(const Backend& backend, const LayerSpec& spec, const std::vector<CallMode>& calls) {
  return choose({.layer = spec,
                 .device = detect(),
                 .tokens = {1},
                 .by_name = std::string(backend.name),
                 .calls = calls});
}

std::vector<const Backend*> fitting(const LayerSpec& spec, const std::vector<CallMode>& calls) {
  std::vector<const Backend*> those;
  for (const Backend* backend : testing::usable_backends()) {
    if (testing::rounding_of(backend->name) != testing::Rounding::none) continue;
    const Plan plan = plan_on(*backend, spec, calls);
    if (!plan.chosen.empty()) {
      those.push_back(backend);
      continue;
    }
    EXPECT_FALSE(plan.verdicts.empty() || plan.verdicts.front().misses.empty() ||
                 plan.verdicts.front().misses.front().why.empty())
        << backend->name << " refuses and does not say why\n"
        << explain(plan);
  }
  EXPECT_FALSE(those.empty()) << "no backend takes " << storage_text(spec.routed.formats);
  return those;
}

Layer layer_on(const Backend& backend, const Toy& toy, int threads, const std::vector<CallMode>& calls) {
  return Layer(plan_on(backend, toy.spec, calls), toy.weights, {.executor = make_thread_team(threads)});
}

Call one_hot(int hidden, int tokens, float value) {
  Call call{.tokens = tokens, .hidden = std::vector<float>(static_cast<std::size_t>(tokens) * hidden)};
  for (int t = 0; t < tokens; ++t) call.hidden[static_cast<std::size_t>(t) * hidden] = value;
  return call;
}

Output run(const Layer& layer, const Call& call, int at_once) {
  std::vector<std::byte> workspace(layer.workspace_bytes(at_once == 0 ? call.tokens : at_once));
  return run_in(layer, call, workspace);
}

Output run_in(const Layer& layer, const Call& given, std::span<std::byte> workspace) {
  const LayerSpec& spec = layer.plan().request.layer;
  const int hidden = spec.routed.hidden, top_k = spec.routed.top_k;
  Call call = given;
  if (call.ids.empty() && call.logits.empty())
    for (int t = 0; t < call.tokens; ++t)
      for (int k = 0; k < top_k; ++k) call.ids.push_back(k);
  if (call.weights.empty()) call.weights.assign(call.ids.size(), 1.0f);
  const std::size_t rows = static_cast<std::size_t>(call.tokens);
  Output out{std::vector<float>(rows * hidden, -12345), std::vector<float>(rows * hidden, -12345),
             std::vector<std::int32_t>(rows * top_k, -99), std::vector<float>(rows * top_k, -99)};
  LayerCall made{.hidden = {reinterpret_cast<const std::byte*>(call.hidden.data()), DType::f32, call.tokens,
                            hidden, std::ptrdiff_t{hidden} * 4},
                 .router_logits = call.logits,
                 .adapters = call.adapters,
                 .adapter_ids = call.adapter_ids,
                 .experts_out = out.experts.data(),
                 .block_out = out.block.data(),
                 .topk_ids = out.ids.data(),
                 .topk_weights = out.weights.data(),
                 .workspace = workspace};
  if (call.logits.empty()) made.routing = {call.ids.data(), call.weights.data(), call.tokens, top_k};
  layer.run(made);
  return out;
}

Output run(const Backend& backend, const Toy& toy, const Call& call) {
  return run(layer_on(backend, toy), call);
}

::testing::AssertionResult near(double got, double want) {
  if (std::abs(got - want) <= 6e-5 + 2e-6 * std::abs(want)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "got " << got << ", want " << want;
}

void expect_rows(Activation activation, const ActivationParams& params, const std::vector<Row>& rows) {
  for (const Format format : all_formats()) {
    std::vector<Pair> pairs;
    std::vector<double> wanted;
    for (const Row& row : rows) {
      const bool exact = holds(format, row.gate) && holds(format, row.up);
      if (!exact && !row.mx) continue;
      pairs.push_back(exact ? Pair{row.gate, row.up} : *row.mx);
      wanted.push_back(row.want);
    }
    ASSERT_FALSE(pairs.empty()) << format.str() << " holds no row";
    const Toy toy = make(spec_of(format, activation, params), {toy_expert(pairs)});
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, one_hot(128));
      for (std::size_t j = 0; j < out.experts.size(); ++j) {
        const double want = j % 32 == 0 && j / 32 < wanted.size() ? wanted[j / 32] : 0;
        EXPECT_TRUE(near(out.experts[j], want)) << backend->name << ", " << format.str() << ", output " << j;
      }
    }
  }
}

std::string refused(const std::function<void()>& body, std::initializer_list<const char*> parts) {
  try {
    body();
  } catch (const Error& error) {
    for (const char* part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << part << " is not in " << error.what();
    return error.info().code;
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

}  // namespace sluice::reports
