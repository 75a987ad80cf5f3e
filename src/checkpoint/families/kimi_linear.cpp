// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear (48B-A3B) and the text part of Kimi-K3, both kimi_linear. Sigmoid, a bias for selecting,
// groups, renormalised, scaled. K3's activation is SiTU, in routed and shared experts; its routed experts
// work on a projection of the hidden state, between a matrix before and a norm and a matrix after them, which
// a layer here does not have: such a model is refused.
#include <fmt/format.h>

#include <limits>

#include "checkpoint/families/common.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

void refuse_latent(const Config& config) {
  require(!config.has("routed_expert_hidden_size"), ErrorKind::unsupported, [&] {
    return ErrorInfo{
        .code = "latent_experts",
        .what = fmt::format("{} is set", config.path_of("routed_expert_hidden_size")),
        .file = config.file_name(),
        .why =
            "the routed experts work on a projection of the hidden state and back (routed_expert_down_proj, "
            "routed_expert_norm, routed_expert_up_proj), which a layer of this library does not have",
        .todo = "Nothing in the configuration helps; the model needs a library with latent projections"};
  });
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
  refuse_latent(config);
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
