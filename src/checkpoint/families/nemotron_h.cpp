// SPDX-License-Identifier: Apache-2.0
// Nemotron-3 (nemotron_h: Nano, Super, Ultra): ReLU squared, and no gate matrix, in routed and shared
// experts. The routed experts of Super and Ultra are latent, without a norm. Layers are attention, Mamba or
// experts, by a pattern of letters of which E is experts. DeepSeek-V3's router.
#include <fmt/format.h>

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

/// hybrid_override_pattern ("MEM*E"), or layers_block_type (["mamba", "moe", "attention"]).
std::vector<int> layers_of(const Config& config, int layers) {
  const std::string pattern = config.text_or("hybrid_override_pattern", "");
  const auto kinds = config.texts_or_empty("layers_block_type");
  const std::size_t count = pattern.empty() ? kinds.size() : pattern.size();
  const char* key = pattern.empty() ? "layers_block_type" : "hybrid_override_pattern";
  if (count < static_cast<std::size_t>(layers))
    config.refuse("short_layer_list", key, fmt::format("it has {} layers, the model has {}", count, layers));
  std::vector<int> sparse;
  for (int layer = 0; layer < layers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    if (pattern.empty() ? kinds[at] == "moe" : pattern[at] == 'E') sparse.push_back(layer);
  }
  return sparse;
}

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  LayerBlueprint pattern{
      .names = {.selection_bias = "gate.e_score_correction_bias", .gate = {}},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_sigmoid_router(config, "n_routed_experts"),
      .activation = read_activation(config, "mlp_hidden_act"),
  };
  if (is_gated(pattern.activation))
    config.refuse("unknown_activation", "mlp_hidden_act", "this family has no gate matrix; known is: relu2");
  if (const int shared = read_shared_count(config, "n_shared_experts"); shared > 0)
    pattern.shared = {.intermediate = config.integer_or("moe_shared_expert_intermediate_size", limits::kWidth,
                                                        shared * pattern.intermediate)};
  if (config.has("moe_latent_size"))
    pattern.latent = LatentBlueprint{.width = config.integer("moe_latent_size", limits::kWidth),
                                     .in = "fc1_latent_proj",
                                     .out = "fc2_latent_proj"};
  add_layers(model, pattern, layers_prefix(input.files) + "{}.mixer.", layers_of(config, model.layers));
  return model;
}

}  // namespace

const Family families_list::kNemotronH{.model_type = "nemotron_h", .read = read};

}  // namespace sluice::checkpoint
