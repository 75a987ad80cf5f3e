// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3, R1, V3.2, and Kimi-K2, which is built like them. Sigmoid, a bias for selecting, groups of
// which the best few are kept by the sum of their two best, weights from the scores without the bias,
// renormalised and scaled. The first layers are dense.
#include "checkpoint/families/deepseek_v3.h"

namespace sluice::checkpoint {
namespace {

Blueprint read(const FamilyInput& whole) {
  const FamilyInput input = text_part(whole);
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  const LayerBlueprint pattern = deepseek_v3_layer(config);
  if (config.integer_or("moe_layer_freq", limits::kLayers, 1) != 1)
    config.refuse("config_out_of_range", "moe_layer_freq", "only models with 1 have been published");
  add_layers(model, pattern, layers_prefix(input.files) + "{}.mlp.", layers_after_dense(config, model));
  return model;
}

}  // namespace

LayerBlueprint deepseek_v3_layer(const Config& config) {
  LayerBlueprint layer{
      .names = {.selection_bias = "gate.e_score_correction_bias"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_sigmoid_router(config, "n_routed_experts"),
      .activation = read_activation(config),
  };
  if (const int shared = read_shared_count(config, "n_shared_experts"); shared > 0)
    layer.shared = {.intermediate = shared * layer.intermediate};
  return layer;
}

const Family families_list::kDeepseekV3{.model_type = "deepseek_v3", .read = read};
const Family families_list::kDeepseekV32{.model_type = "deepseek_v32", .read = read};
const Family families_list::kKimiK2{.model_type = "kimi_k2", .read = read};
const Family families_list::kKimiK25{.model_type = "kimi_k25", .read = read};

}  // namespace sluice::checkpoint
