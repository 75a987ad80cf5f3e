// SPDX-License-Identifier: Apache-2.0
// sluice explain MODEL: which backend would run each layer on a device, and why the others would not.
#include <fmt/format.h>

#include "errors.h"
#include "json.h"
#include "model.h"
#include "output.h"
#include "verbs.h"

namespace sluice::tools {

namespace {

/// Layers of one plan are told once.
std::string plans_text(const std::vector<ExplainedLayer>& layers) {
  std::string text;
  for (std::size_t first = 0; first < layers.size();) {
    const std::string body = explain(layers[first].plan);
    std::vector<int> same;
    while (first < layers.size() && explain(layers[first].plan) == body)
      same.push_back(layers[first++].layer);
    text += (text.empty() ? "" : "\n") + layers_text(same) + "\n" + body;
  }
  return text;
}

std::vector<int> without_backend(const ExplainResult& result) {
  std::vector<int> layers;
  for (const ExplainedLayer& layer : result.layers)
    if (layer.plan.chosen.empty()) layers.push_back(layer.layer);
  return layers;
}

/// A backend of which nothing is missing but its kernels in this build; empty: none.
std::string not_built(const ExplainResult& result) {
  for (const ExplainedLayer& layer : result.layers)
    for (const Verdict& verdict : layer.plan.verdicts)
      if (verdict.misses.size() == 1 && verdict.misses.front().trait == "build") return verdict.backend;
  return {};
}

/// The text half of exit code 4; the document or the table on stdout has every reason.
void say_unsupported(const ExplainResult& result, const std::vector<int>& layers) {
  const std::string backend = not_built(result);
  report({.code = "unsupported",
          .what = fmt::format("no backend runs {} on {}", layers_text(layers), result.device.name),
          .why = "each backend's reasons are in the table on the standard output",
          .todo = backend.empty()
                      ? "try --device cpu; docs/adding says what a backend declares"
                      : fmt::format("use a build that has the kernels of {}, or try --device cpu", backend)},
         Form::text);
}

std::vector<CallMode> call_modes(const std::vector<std::string>& names) {
  std::vector<CallMode> modes;
  for (const std::string& name : names) {
    const std::optional<CallMode> mode = CallMode::parse(name);
    if (!mode)
      throw Error(ErrorKind::invalid_argument,
                  {.code = "no_such_call",
                   .what = fmt::format("there is no call mode named \"{}\"", name),
                   .why = "there are contiguous, batched, batch_invariant and update",
                   .todo = "give some of them to --calls"});
    modes.push_back(*mode);
  }
  return modes;
}

}  // namespace

int execute(const ExplainOptions& options, Form form) {
  require_backend_name(options.backend);
  const DeviceFacts device = known_device(options.device);
  const Checkpoint model = open_model(options.model);
  ExplainResult result{
      .model = model.info().directory, .device = device, .tokens = options.tokens, .layers = {}};
  for (int layer : chosen_layers(model, options.layer))
    result.layers.push_back({layer, choose({.layer = model.spec(layer),
                                            .device = device,
                                            .tokens = options.tokens,
                                            .by_name = options.backend,
                                            .calls = call_modes(options.calls)})});
  print(form == Form::json ? to_json(result) : plans_text(result.layers));
  if (const std::vector<int> layers = without_backend(result); !layers.empty()) {
    say_unsupported(result, layers);
    return kUnsupported;
  }
  if (form == Form::text) suggest("sluice check " + options.model);
  return kOk;
}

}  // namespace sluice::tools
