// SPDX-License-Identifier: Apache-2.0
// MiniMax-M2 and M3. Sigmoid, a bias for selecting, renormalised, scaled. M2 is plain SwiGLU without shared
// experts. M3 has gpt-oss's activation on separate matrices, in routed, shared and dense layers alike,
// whatever its hidden_act says (some exports say silu); its shared expert is named otherwise than the routed
// ones.
#include <fmt/format.h>

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

RouterSpec read_router_of(const Config& config) {
  one_of(config, "scoring_func", {"sigmoid"});
  RouterSpec router = read_router(config, "num_local_experts", known<Score>("sigmoid"));
  router.selection_bias = config.flag_or("use_routing_bias", true);
  router.renormalise = true;
  router.scale = static_cast<float>(config.number_or("routed_scaling_factor", kLeastScale, 1));
  return router;
}

LayerBlueprint pattern_of(const Config& config, Activation activation) {
  LayerBlueprint pattern{
      .names = {.gate = "w1", .up = "w3", .down = "w2"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("intermediate_size", limits::kWidth),
      .router = read_router_of(config),
      .activation = activation,
  };
  if (pattern.router.selection_bias) pattern.names.selection_bias = "e_score_correction_bias";
  return pattern;
}

Blueprint read_m2(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  add_layers(model, pattern_of(config, read_activation(config)),
             layers_prefix(input.files) + "{}.block_sparse_moe.", all_layers(model.layers));
  return model;
}

/// moe_layer_freq: a flag a layer. Absent: every layer has experts.
std::vector<int> layers_of_m3(const Config& config, int layers) {
  const auto flags = config.flags_or_empty("moe_layer_freq");
  if (flags.empty()) return all_layers(layers);
  if (static_cast<int>(flags.size()) < layers)
    config.refuse("short_layer_list", "moe_layer_freq",
                  fmt::format("it has {} entries, the model has {} layers", flags.size(), layers));
  std::vector<int> sparse;
  for (int layer = 0; layer < layers; ++layer)
    if (flags[static_cast<std::size_t>(layer)]) sparse.push_back(layer);
  return sparse;
}

Blueprint read_m3(const FamilyInput& whole) {
  const FamilyInput input = text_part(whole);
  const Config& config = input.config;
  Blueprint model = start(input);
  const std::string named = one_of(config, "hidden_act", {"swigluoai", "silu"}, "unknown_activation");
  refuse_unknown_limits(config, {"swiglu_alpha", "swiglu_beta", "swiglu_limit"});
  LayerBlueprint pattern = pattern_of(config, known<Activation>("silu"));
  constexpr double kAny = -1e6;  // a shift may be negative
  if (!config.has("swiglu_alpha"))
    config.refuse("config_missing_key", "swiglu_alpha", "its absence would change every output");
  pattern.params.slope = static_cast<float>(config.number_or("swiglu_alpha", kLeastScale, 1));
  pattern.params.shift = static_cast<float>(config.number_or("swiglu_beta", kAny, 1));
  if (const int shared = read_shared_count(config, "n_shared_experts"); shared > 0)
    pattern.shared =
        SharedBlueprint{.intermediate = shared * config.integer_or("shared_intermediate_size", limits::kWidth,
                                                                   pattern.intermediate),
                        .gate = "gate_proj",
                        .up = "up_proj",
                        .down = "down_proj"};
  add_layers(model, pattern, layers_prefix(input.files) + "{}.block_sparse_moe.",
             layers_of_m3(config, model.layers));
  const auto limit = config.limits("swiglu_limit", model.layers);
  for (LayerBlueprint& layer : model.moe_layers) {
    layer.params.limit = limit[static_cast<std::size_t>(layer.layer)];
    if (layer.shared) layer.shared->params = layer.params;
  }
  model.notes.push_back(fmt::format(
      "hidden_act is {}; the activation is gpt-oss's with slope {} and shift {}{}, for shared experts, too",
      named, pattern.params.slope, pattern.params.shift,
      config.has("swiglu_beta") ? "" : " (swiglu_beta is absent and means 1)"));
  return model;
}

}  // namespace

const Family families_list::kMinimaxM2{.model_type = "minimax_m2", .read = read_m2};
const Family families_list::kMinimaxM3{.model_type = "minimax_m3", .read = read_m3};
const Family families_list::kMinimaxM3Vl{.model_type = "minimax_m3_vl", .read = read_m3};

}  // namespace sluice::checkpoint
