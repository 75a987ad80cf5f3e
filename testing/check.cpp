// SPDX-License-Identifier: Apache-2.0
#include "testing/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "core/error.h"
#include "sluice/device.h"
#include "sluice/plan.h"
#include "testing/closeness.h"
#include "testing/device_for.h"
#include "testing/draw_input.h"
#include "testing/layer_input.h"
#include "testing/reference_run.h"

namespace sluice::testing {

namespace {

constexpr double kReferenceRelL2 = 3e-6;
constexpr double kBackendRelL2 = 4e-3;  // of those that round activations: kInt8RelL2
constexpr double kWeightsError = 1e-5;
constexpr const char* kReferenceName = "reference";

/// Everything about one layer that does not depend on the backend under test.
struct Subject {
  int number = 0;
  LayerSpec spec;
  LayerWeights weights;
  LayerInput input;
  std::optional<ExpectedOutputs> expected = {};
  ReferenceResult definition = {};
  std::optional<ReferenceResult> rounded = {};  // the definition of backends that round to int8
  std::vector<float> routing_weights = {};
  std::vector<std::int32_t> ids = {};  // of the definition's routing
};

/// What a layer answers.
struct Answer {
  std::vector<std::int32_t> ids;
  std::vector<float> weights, experts_out, block_out;
};

/// How many tokens a call may compute at a time. Backends have kernels of their own for few tokens.
enum class Batch : std::uint8_t { all_tokens, one_token };

Answer run(const Layer& layer, const Subject& subject, Batch batch) {
  const auto tokens = static_cast<std::size_t>(subject.input.hidden.rows);
  const ExpertsSpec& spec = subject.spec.routed;
  Answer answer{.ids = std::vector<std::int32_t>(tokens * static_cast<std::size_t>(spec.top_k)),
                .weights = std::vector<float>(tokens * static_cast<std::size_t>(spec.top_k)),
                .experts_out = std::vector<float>(tokens * static_cast<std::size_t>(subject.spec.hidden())),
                .block_out = std::vector<float>(tokens * static_cast<std::size_t>(subject.spec.hidden()))};
  const int at_once = batch == Batch::one_token ? 1 : std::max(1, subject.input.hidden.rows);
  std::vector<std::byte> workspace(layer.workspace_bytes(at_once));
  layer.run({.hidden = subject.input.hidden,
             .token_ids = subject.input.token_ids,
             .experts_out = answer.experts_out.data(),
             .block_out = answer.block_out.data(),
             .topk_ids = answer.ids.data(),
             .topk_weights = answer.weights.data(),
             .workspace = workspace});
  return answer;
}

// ---- comparing

/// The worst token's ||got - want|| / ||want||; NaN and infinities make it infinite.
double rel_l2_max(std::span<const float> got, std::span<const float> want, int width) {
  double worst = 0;
  for (std::size_t row = 0; row < want.size(); row += static_cast<std::size_t>(width)) {
    double error2 = 0, want2 = 0;
    for (std::size_t i = row; i < row + static_cast<std::size_t>(width); ++i) {
      const double difference = double{got[i]} - want[i];
      error2 += difference * difference;
      want2 += double{want[i]} * want[i];
    }
    const double relative = error2 == 0 ? 0 : std::sqrt(error2 / want2);
    worst = std::isfinite(relative) ? std::max(worst, relative) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

/// A token's experts with their weights, by id, so that the order of the selection does not matter.
std::vector<std::pair<std::int32_t, float>> by_id(std::span<const std::int32_t> ids,
                                                  std::span<const float> weights) {
  std::vector<std::pair<std::int32_t, float>> pairs;
  for (std::size_t j = 0; j < ids.size(); ++j) pairs.emplace_back(ids[j], weights[j]);
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

void compare_routing(const Answer& answer, const ExpectedOutputs& expected, int top_k, CheckCase& result) {
  const auto k = static_cast<std::size_t>(top_k);
  const bool weighted = !expected.topk_weights.empty();
  for (std::size_t at = 0; at < answer.ids.size(); at += k) {
    const std::span<const float> got_weights(answer.weights.data() + at, k);
    const auto got = by_id({answer.ids.data() + at, k}, got_weights);
    const auto want =
        by_id({expected.topk_ids.data() + at, k},
              weighted ? std::span<const float>(expected.topk_weights.data() + at, k) : got_weights);
    for (std::size_t j = 0; j < k; ++j) {
      result.ids_equal = result.ids_equal && got[j].first == want[j].first;
      const double error = std::abs(double{got[j].second} - want[j].second);
      if (weighted)
        result.weights_max_error = std::isnan(error) ? error : std::max(result.weights_max_error, error);
    }
  }
}

void compare_with_expected(const Answer& answer, const Subject& subject, CheckCase& result) {
  const int hidden = subject.spec.hidden();
  const auto compare = [&](const char* what, std::span<const float> got, std::span<const float> want) {
    if (want.empty()) return;
    const double distance = rel_l2_max(got, want, hidden);
    result.rel_l2_max = std::max(result.rel_l2_max, distance);
    if (!(distance <= result.rel_l2_limit))
      result.failures.push_back(
          fmt::format("{} differs from the expected one by {:.2g} relative L2 in a token, at most {:.2g}",
                      what, distance, result.rel_l2_limit));
  };
  compare("experts_out", answer.experts_out, subject.expected->experts_out);
  compare("block_out", answer.block_out, subject.expected->block_out);
  if (!subject.expected->topk_ids.empty())
    compare_routing(answer, *subject.expected, subject.spec.routed.top_k, result);
}

double rel_l2_limit(const std::string& backend) {
  if (backend == kReferenceName) return kReferenceRelL2;
  return rounding_of(backend) == Rounding::none ? kBackendRelL2 : kInt8RelL2;
}

/// What rounding activations costs.
void compare_with_unrounded(const Answer& answer, const Subject& subject, CheckCase& result) {
  const auto compare = [&](const char* what, std::span<const float> got, std::span<const double> want) {
    const std::vector<float> wanted(want.begin(), want.end());
    const double distance = rel_l2_max(got, wanted, subject.spec.hidden());
    result.rel_l2_max = std::max(result.rel_l2_max, distance);
    if (!(distance <= result.rel_l2_limit))
      result.failures.push_back(
          fmt::format("{} differs by {:.2g} relative L2 in a token from what is not rounded, at most {:.2g}",
                      what, distance, result.rel_l2_limit));
  };
  compare("experts_out", answer.experts_out, subject.definition.experts_out);
  compare("block_out", answer.block_out, subject.definition.block_out);
}

void compare_with_definition(const Answer& answer, const Subject& subject, CheckCase& result) {
  const double unit = unit_of(result.backend);
  const bool rounds = rounding_of(result.backend) != Rounding::none;
  const ReferenceResult& definition = rounds ? subject.rounded.value() : subject.definition;
  const auto compare = [&](const char* what, std::span<const float> got, std::span<const double> want,
                           std::span<const double> magnitude) {
    const Closeness near = closeness(
        {.got = got, .want = want, .magnitude = magnitude, .width = subject.spec.hidden(), .unit = unit});
    result.worst_element_units = std::max(result.worst_element_units, near.worst_element_units);
    result.rms_units = std::max(result.rms_units, near.rms_units);
    if (!subject.expected && !rounds) result.rel_l2_max = std::max(result.rel_l2_max, near.rel_l2_max);
    if (!near.ok())
      result.failures.push_back(fmt::format("{} differs from the definition: {}", what, near.str()));
  };
  compare("experts_out", answer.experts_out, definition.experts_out, definition.experts_magnitude);
  compare("block_out", answer.block_out, definition.block_out, definition.block_magnitude);
  if (rounds && !subject.expected) compare_with_unrounded(answer, subject, result);
  const bool ids_expected = subject.expected && !subject.expected->topk_ids.empty();
  if (!ids_expected) result.ids_equal = result.ids_equal && answer.ids == subject.ids;
}

CheckCase compare(const Layer& layer, const Subject& subject) {
  const std::string& backend = layer.plan().chosen;
  const ReferenceResult& definition = subject.definition;
  CheckCase result{.backend = backend,
                   .layer = subject.number,
                   .rel_l2_limit = rel_l2_limit(backend),
                   .clamp = {.limited = std::isfinite(subject.spec.routed.params.limit),
                             .gate_over_limit = definition.gate_over_limit,
                             .up_over_limit = definition.up_over_limit,
                             .effect = definition.clamp_effect}};
  for (const Batch batch : {Batch::all_tokens, Batch::one_token}) {
    if (batch == Batch::one_token && backend == kReferenceName) continue;  // it knows no other way
    const Answer answer = run(layer, subject, batch);
    compare_with_definition(answer, subject, result);
    if (subject.expected) compare_with_expected(answer, subject, result);
  }
  if (!result.ids_equal) result.failures.emplace_back("a token goes to other experts than expected");
  if (!(result.weights_max_error <= kWeightsError))
    result.failures.push_back(fmt::format("a routing weight differs by {:.2g}, at most {:.0e}",
                                          result.weights_max_error, kWeightsError));
  return result;
}

// ---- subjects

Plan plan_for(const LayerSpec& spec, const std::string& backend, int tokens) {
  return choose(
      {.layer = spec, .device = device_for(backend), .tokens = {1, std::max(1, tokens)}, .by_name = backend});
}

ReferenceResult definition_of(const Subject& subject, Rounding rounding, Executor& team) {
  return reference_run({.spec = subject.spec,
                        .weights = subject.weights,
                        .hidden = subject.input.hidden,
                        .routing = {subject.ids.data(), subject.routing_weights.data(),
                                    subject.input.hidden.rows, subject.spec.routed.top_k},
                        .executor = &team,
                        .rounding = rounding});
}

/// Routes as the engine does and computes the definition for that routing.
void define(Subject& subject, const std::shared_ptr<Executor>& team) {
  const int tokens = subject.input.hidden.rows, top_k = subject.spec.routed.top_k;
  subject.ids.resize(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(top_k));
  subject.routing_weights.resize(subject.ids.size());
  const Layer router(plan_for(subject.spec, kReferenceName, tokens), subject.weights, {.executor = team});
  std::vector<std::byte> workspace(router.workspace_bytes(std::max(1, tokens)));
  router.run({.hidden = subject.input.hidden,
              .token_ids = subject.input.token_ids,
              .topk_ids = subject.ids.data(),
              .topk_weights = subject.routing_weights.data(),
              .workspace = workspace});
  subject.definition = definition_of(subject, Rounding::none, *team);
}

class Checker {
 public:
  Checker(const Checkpoint& model, const CheckRequest& request) : model_(model), request_(request) {
    if (!request.expected.empty()) file_ = TensorFile::open(request.expected);
    report_.compared_with = file_ ? "expected" : "reference";
  }

  CheckReport check() {
    for (const int layer : request_.layers) check_layer(layer);
    return std::move(report_);
  }

 private:
  void check_layer(int layer) {
    Subject subject{
        .number = layer, .spec = model_.spec(layer), .weights = model_.weights(layer), .input = {}};
    if (file_) {
      subject.input = read_layer_input(*file_, layer, subject.spec);
      subject.expected = read_expected(*file_, layer, subject.spec, subject.input.hidden.rows);
      check_token_ids(*file_, layer, subject.spec, subject.weights, subject.input);
    } else {
      subject.input = draw_layer_input(subject.spec, subject.weights, request_.seed, team_);
    }
    define(subject, team_);
    for (const std::string& backend : backends()) check_backend(subject, backend);
  }

  std::vector<std::string> backends() const {
    if (request_.backend != "all") return {request_.backend};
    std::vector<std::string> names;
    for (const BackendInfo& info : backends_info()) names.push_back(info.name);
    return names;
  }

  void check_backend(Subject& subject, const std::string& backend) {
    Plan plan = plan_for(subject.spec, backend, subject.input.hidden.rows);
    if (plan.chosen.empty()) {
      if (request_.backend != "all") throw Unsupported(std::move(plan));
      report_.not_run.push_back({backend, subject.number, reasons(plan, backend)});
      return;
    }
    const Rounding rounding = rounding_of(backend);
    if (rounding != Rounding::none && !subject.rounded)
      subject.rounded = definition_of(subject, rounding, *team_);
    const Layer layer(plan, subject.weights,
                      {.executor = team_, .progress = request_.progress, .cache = request_.cache});
    report_.cases.push_back(compare(layer, subject));
    if (request_.on_cache) request_.on_cache(layer.cache());
  }

  static std::string reasons(const Plan& plan, const std::string& backend) {
    std::vector<std::string> parts;
    for (const Verdict& verdict : plan.verdicts)
      if (verdict.backend == backend)
        for (const Miss& miss : verdict.misses) parts.push_back(miss.trait + ": " + miss.why);
    return fmt::format("{}", fmt::join(parts, "; "));
  }

  const Checkpoint& model_;
  const CheckRequest& request_;
  const std::shared_ptr<Executor> team_ = make_thread_team();
  std::optional<TensorFile> file_ = {};
  CheckReport report_;
};

}  // namespace

bool CheckReport::passed() const {
  return !cases.empty() &&
         std::all_of(cases.begin(), cases.end(), [](const CheckCase& c) { return c.failures.empty(); });
}

CheckReport check(const Checkpoint& model, const CheckRequest& request) {
  return Checker(model, request).check();
}

std::vector<int> layers_to_check(const Checkpoint& model, const std::string& expected_file) {
  const TensorFile file = TensorFile::open(expected_file);
  const std::vector<int>& in_model = model.info().moe_layers;
  const std::vector<int> layers = expected_layers(file);
  for (const int layer : layers)
    require(
        std::find(in_model.begin(), in_model.end(), layer) != in_model.end(), ErrorKind::corrupt_file, [&] {
          return ErrorInfo{
              .code = "layer_of_another_model",
              .what =
                  fmt::format("the file has outputs of layer {}, which is no MoE layer of this model", layer),
              .file = expected_file,
              .tensor = fmt::format("{}.hidden", layer),
              .why = fmt::format("those are {}", fmt::join(in_model, ", ")),
              .todo = "give the file that was made from this model"};
        });
  require(!layers.empty(), ErrorKind::corrupt_file, [&] {
    return ErrorInfo{.code = "nothing_expected",
                     .what = "the file has no inputs and outputs of a layer of this model",
                     .file = expected_file,
                     .why = fmt::format("layers {} were looked for as N.hidden", fmt::join(in_model, ", ")),
                     .todo = "docs/cli.md says how the tensors of such a file are named"};
  });
  return layers;
}

}  // namespace sluice::testing
