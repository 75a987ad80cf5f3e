// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2 (236B, Lite): softmax over all experts; V2 keeps the groups with the best single expert, Lite
// has no groups. Weights are scaled and not renormalised.
#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

RouterSpec read_router_of(const Config& config) {
  one_of(config, "scoring_func", {"softmax"});
  RouterSpec router = read_router(config, "n_routed_experts", known<Score>("softmax"));
  router.scale = static_cast<float>(config.number_or("routed_scaling_factor", kLeastScale, 1));
  router.renormalise = config.flag_or("norm_topk_prob", false);
  if (router.renormalise && router.scale != 1)
    config.refuse(
        "unknown_router", "norm_topk_prob",
        "the model's own code does not scale what it renormalised, other engines do, and no published "
        "checkpoint asks for both");
  if (one_of(config, "topk_method", {"greedy", "group_limited_greedy"}) == "group_limited_greedy")
    read_groups(config, router, GroupScore::best);
  return router;
}

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  LayerBlueprint pattern{
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_router_of(config),
      .activation = read_activation(config),
  };
  if (const int shared = read_shared_count(config, "n_shared_experts"); shared > 0)
    pattern.shared = {.intermediate = shared * pattern.intermediate};
  if (config.integer_or("moe_layer_freq", limits::kLayers, 1) != 1)
    config.refuse("config_out_of_range", "moe_layer_freq", "only models with 1 have been published");
  add_layers(model, pattern, "model.layers.{}.mlp.", layers_after_dense(config, model));
  return model;
}

}  // namespace

const Family families_list::kDeepseekV2{.model_type = "deepseek_v2", .read = read};

}  // namespace sluice::checkpoint
