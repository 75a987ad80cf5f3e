// SPDX-License-Identifier: Apache-2.0
// sluice inspect MODEL: what a checkpoint holds.
#include <fmt/format.h>

#include <cmath>

#include "errors.h"
#include "json.h"
#include "lint.h"
#include "model.h"
#include "output.h"
#include "progress.h"
#include "testing/sample.h"
#include "verbs.h"

namespace sluice::tools {

namespace {

std::string router_text(const RouterSpec& router) {
  std::string text = fmt::format("{}, top {} of {}", router.score.str(), router.top_k, router.experts);
  if (router.groups > 1)
    text += fmt::format(", {} of {} groups by {}", router.groups_kept, router.groups,
                        router.group_score == GroupScore::best ? "their best" : "their two best");
  if (router.by_token_id) text += ", experts chosen by token id";
  if (router.bias) text += ", with bias";
  if (router.selection_bias) text += ", with a bias that only selects";
  if (router.expert_scale) text += ", a scale for each expert";
  if (router.renormalise) text += ", weights renormalised";
  if (router.scale != 1.0f) text += fmt::format(", weights times {}", router.scale);
  return text;
}

std::string activation_text(const ExpertsSpec& spec) {
  std::string text(spec.activation.str());
  const ActivationParams& params = spec.params;
  if (std::isinf(params.limit))
    text += ", no limit";
  else
    text += fmt::format(", limit {}", params.limit);
  if (params.slope != 1.0f) text += fmt::format(", slope {}", params.slope);
  if (params.shift != 0.0f) text += fmt::format(", shift {}", params.shift);
  if (std::isfinite(params.situ_beta)) text += fmt::format(", beta {}", params.situ_beta);
  if (std::isfinite(params.situ_linear_beta))
    text += fmt::format(", linear beta {}", params.situ_linear_beta);
  return text;
}

std::string experts_text(const ExpertsSpec& spec) {
  std::string text =
      fmt::format("{} of hidden {}, intermediate {}", spec.experts, spec.hidden, spec.intermediate);
  if (spec.gate_up_bias) text += ", gate and up biases";
  if (spec.down_bias) text += ", down bias";
  if (spec.weight_on_input) text += ", weight on the input";
  return text;
}

std::string formats_text(const MatrixFormats& formats) {
  const std::string up = storage_text(formats.up, formats.up_grouping),
                    down = storage_text(formats.down, formats.down_grouping),
                    gate = formats.gate ? storage_text(*formats.gate, formats.gate_grouping) : up;
  if (gate == up && up == down) return up;
  return fmt::format("{}up {}, down {}", formats.gate ? "gate " + gate + ", " : "", up, down);
}

/// Those of most experts, then of the others: "; experts 0-2, 7: bf16".
std::string formats_text(const ExpertsSpec& spec) {
  const std::string all = storage_text(spec);
  return formats_text(spec.formats) + all.substr(std::min(all.find(';'), all.size()));
}

/// "hidden 7168 to 3584 before the experts and back, with a norm of their sum (epsilon 1e-05)".
std::string latent_text(const LayerSpec& spec) {
  std::string text =
      fmt::format("hidden {} to {} before the experts and back", spec.hidden(), spec.routed.hidden);
  if (spec.latent->norm_epsilon)
    text += fmt::format(", with a norm of their sum (epsilon {:.3g})", *spec.latent->norm_epsilon);
  return text;
}

/// A layer without its number, so that equal layers give equal text.
std::string layer_text(const InspectedLayer& layer) {
  const ExpertsSpec& routed = layer.spec.routed;
  std::string text =
      fmt::format("  experts     {}\n", experts_text(routed)) +
      (layer.spec.latent ? fmt::format("  latent      {}\n", latent_text(layer.spec)) : std::string()) +
      fmt::format("  router      {}\n", router_text(layer.spec.router)) +
      fmt::format("  activation  {}\n", activation_text(routed)) +
      fmt::format("  formats     {}, {:.2f} bits a weight\n", formats_text(routed), layer.bits_a_weight);
  if (layer.spec.shared) {
    const SharedSpec& shared = *layer.spec.shared;
    text += fmt::format("  shared      intermediate {}, {}, {}{}\n", shared.experts.intermediate,
                        formats_text(shared.experts.formats), activation_text(shared.experts),
                        shared.sigmoid_gate ? ", with a sigmoid gate" : "");
  }
  return text + fmt::format("  bytes       {}\n", bytes_text(layer.bytes));
}

std::string model_text(const ModelInfo& model) {
  return fmt::format(
      "{}\n  family      {} ({}), {} layers, {} with experts\n  scheme      {}\n  files       {}, {}, {} "
      "tensors\n",
      printable(model.directory), model.family, printable(model.architecture), model.layers,
      model.moe_layers.size(), printable(model.quantisation), model.files, bytes_text(model.file_bytes),
      model.tensors);
}

std::string layers_as_text(const std::vector<InspectedLayer>& layers) {
  std::string text;
  for (std::size_t first = 0; first < layers.size();) {
    const std::string body = layer_text(layers[first]);
    std::vector<int> same;
    while (first < layers.size() && layer_text(layers[first]) == body) same.push_back(layers[first++].layer);
    text += "\n" + layers_text(same) + "\n" + body;
  }
  return text;
}

std::string notes_text(const std::vector<std::string>& notes) {
  std::string text = notes.empty() ? "" : "\nnotes\n";
  for (const std::string& note : notes) text += "  - " + printable(note) + "\n";
  return text;
}

std::vector<InspectedLayer> inspect_layers(const Checkpoint& model) {
  ProgressLine progress("reading scales");
  const Progress show = progress.callback();
  std::vector<InspectedLayer> layers;
  std::int64_t done = 0;
  for (int layer : model.info().moe_layers) {
    const LayerSpec spec = model.spec(layer);
    const std::int64_t bytes = model.layer_bytes(layer);
    static_cast<void>(model.weights(layer));  // refuses scales that are zero, negative or no numbers
    show(done += bytes, model.info().file_bytes);
    layers.push_back({layer, spec, bytes, testing::bits_a_weight(spec.routed)});
  }
  return layers;
}

}  // namespace

int execute(const InspectOptions& options, Form form) {
  if (options.lint) return execute_lint(options, form);
  const Checkpoint model = open_model(options.model);
  const InspectResult result{model.info(), inspect_layers(model)};
  if (form == Form::json) {
    print(to_json(result));
    return kOk;
  }
  print(model_text(result.model) + layers_as_text(result.layers) + notes_text(result.model.notes));
  suggest("sluice explain " + options.model);
  return kOk;
}

}  // namespace sluice::tools
