// SPDX-License-Identifier: Apache-2.0
// Ling-2.0 (bailing_moe_v2) and Ling-3.0 (bailing_moe_v3). Sigmoid, a bias for selecting, groups, always
// renormalised, scaled. Ling-3.0 clamps its last layers by two lists, for routed experts and for the shared
// one. The authors' published code ignores the lists although the model was trained with them.
#include <cmath>

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

constexpr const char* kRoutedLimits = "expert_swiglu_limit_list";
constexpr const char* kSharedLimits = "share_expert_swiglu_limit_list";

LayerBlueprint pattern_of(const Config& config) {
  LayerBlueprint pattern{
      .names = {},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_sigmoid_router(config, "num_experts"),
      .activation = read_activation(config),
  };
  pattern.router.renormalise = true;
  pattern.router.selection_bias = config.flag_or("moe_router_enable_expert_bias", true);
  if (const int shared = read_shared_count(config, "num_shared_experts"); shared > 0)
    pattern.shared = {.intermediate = shared * config.integer_or("moe_shared_expert_intermediate_size",
                                                                 limits::kWidth, pattern.intermediate)};
  return pattern;
}

void add_all(const FamilyInput& input, LayerBlueprint pattern, Blueprint& model) {
  const std::string block = layers_prefix(input.files) + "{}.mlp.";
  const auto layers = layers_after_dense(input.config, model);
  if (pattern.router.selection_bias)
    pattern.names.selection_bias = stored_name(input.files, block, layers.empty() ? 0 : layers.front(),
                                               {"gate.expert_bias", "gate.e_score_correction_bias"});
  add_layers(model, pattern, block, layers);
}

Blueprint read_v2(const FamilyInput& input) {
  Blueprint model = start(input);
  refuse_unknown_limits(input.config, {});
  add_all(input, pattern_of(input.config), model);
  return model;
}

Blueprint read_v3(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {kRoutedLimits, kSharedLimits});
  add_all(input, pattern_of(config), model);
  const auto routed = config.limits(kRoutedLimits, model.layers),
             shared = config.limits(kSharedLimits, model.layers);
  if ((any_limit(routed) || any_limit(shared)) && config.text("hidden_act") != "silu")
    config.refuse("unknown_activation", "hidden_act", "this family clamps, and only silu has a clamp");
  for (LayerBlueprint& layer : model.moe_layers) {
    const auto at = static_cast<std::size_t>(layer.layer);
    layer.params.limit = routed[at];
    if (layer.shared) layer.shared->params.limit = shared[at];
    if (std::isfinite(routed[at]) || std::isfinite(shared[at]))
      layer.activation = known<Activation>("silu_then_clamp");
  }
  if (any_limit(routed))
    model.notes.push_back(
        "the limits clamp after the SiLU, routed and shared alike; engines disagree about the routed ones "
        "(vLLM "
        "clamps before), and the authors' published code ignores them");
  return model;
}

}  // namespace

const Family families_list::kBailingMoeV2{.model_type = "bailing_moe_v2", .read = read_v2};
const Family families_list::kBailingMoeV3{.model_type = "bailing_moe_v3", .read = read_v3};

}  // namespace sluice::checkpoint
