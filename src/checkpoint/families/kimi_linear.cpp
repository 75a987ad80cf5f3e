// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear (48B-A3B) and the text part of Kimi-K3, both kimi_linear. Sigmoid, a bias for selecting,
// groups, renormalised, scaled. K3's activation is SiTU, in routed and shared experts; its routed experts are
// latent, with a norm of their sum.
#include <fmt/format.h>

#include <limits>
#include <optional>

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

constexpr double kLeastEpsilon = 1e-30;  // of a norm: 0 would make NaN of a row of zeros

/// None without routed_expert_hidden_size. A norm that is in the files and not in the configuration is a
/// tensor that nothing uses, and refused as such.
std::optional<LatentBlueprint> read_latent(const Config& config) {
  if (!config.has("routed_expert_hidden_size")) return std::nullopt;
  LatentBlueprint latent{.width = config.integer("routed_expert_hidden_size", limits::kWidth),
                         .in = "routed_expert_down_proj",
                         .out = "routed_expert_up_proj"};
  if (!config.flag_or("latent_moe_use_norm", false)) return latent;
  if (!config.has("rms_norm_eps"))
    config.refuse("config_missing_key", "rms_norm_eps", "the norm behind the experts needs it");
  latent.norm = "routed_expert_norm.weight";
  latent.norm_epsilon = static_cast<float>(config.number_or("rms_norm_eps", kLeastEpsilon, 1));
  return latent;
}

ActivationParams read_params(const Config& config, Activation activation) {
  ActivationParams params;
  if (activation != known<Activation>("situ")) return params;
  if (!config.has("activation_situ_beta"))
    config.refuse("config_missing_key", "activation_situ_beta", "SiTU without it is another activation");
  params.situ_beta = static_cast<float>(config.number_or("activation_situ_beta", kLeastScale, 1));
  params.situ_linear_beta =
      static_cast<float>(config.has("activation_situ_linear_beta")
                             ? config.number_or("activation_situ_linear_beta", kLeastScale, 1)
                             : std::numeric_limits<double>::infinity());
  return params;
}

RouterSpec read_router_of(const Config& config) {
  one_of(config, "moe_router_activation_func", {"sigmoid"});
  const int experts = config.integer("num_experts", limits::kExperts);
  const int top_k = config.integer("num_experts_per_token", limits::kExperts);
  if (top_k > experts)
    config.refuse("config_out_of_range", "num_experts_per_token",
                  fmt::format("there are only {} experts", experts));
  RouterSpec router{.score = known<Score>("sigmoid"),
                    .experts = experts,
                    .top_k = top_k,
                    .group_score = GroupScore::two_best,
                    .selection_bias = true,
                    .renormalise = config.flag_or("moe_renormalize", true),
                    .scale = static_cast<float>(config.number_or("routed_scaling_factor", kLeastScale, 1))};
  router.groups = config.integer_or("num_expert_group", limits::kExperts, 1);
  router.groups_kept = config.integer_or("topk_group", limits::kExperts, router.groups);
  return router;
}

Blueprint read(const FamilyInput& whole) {
  const FamilyInput input = text_part(whole);
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  if (config.integer_or("moe_layer_freq", limits::kLayers, 1) != 1)
    config.refuse("config_out_of_range", "moe_layer_freq", "only models with 1 have been published");
  const Activation activation =
      config.text("hidden_act") == "situ" ? known<Activation>("situ") : read_activation(config);
  LayerBlueprint pattern{
      .names = {.selection_bias = "gate.e_score_correction_bias", .gate = "w1", .up = "w3", .down = "w2"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_router_of(config),
      .activation = activation,
      .params = read_params(config, activation),
  };
  if (const int shared = read_shared_count(config, "num_shared_experts"); shared > 0)
    pattern.shared = SharedBlueprint{.intermediate = shared * pattern.intermediate,
                                     .params = pattern.params,
                                     .gate = "gate_proj",
                                     .up = "up_proj",
                                     .down = "down_proj"};
  pattern.latent = read_latent(config);
  add_layers(model, pattern, layers_prefix(input.files) + "{}.block_sparse_moe.",
             layers_after_dense(config, model));
  model.notes.push_back(
      "weights are the scores without the bias that selects; one public port of this family takes them with "
      "it");
  return model;
}

}  // namespace

const Family families_list::kKimiK3{.model_type = "kimi_k3", .read = read};
const Family families_list::kKimiLinear{.model_type = "kimi_linear", .read = read};

}  // namespace sluice::checkpoint
