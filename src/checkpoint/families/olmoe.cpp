// SPDX-License-Identifier: Apache-2.0
// OLMoE: softmax over all experts, then the best, not renormalised. intermediate_size is an expert's. Every
// layer has experts; clip_qkv is about attention.
#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  LayerBlueprint pattern{
      .names = {.shared = {}},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("intermediate_size", limits::kWidth),
      .router = read_router(config, "num_experts", known<Score>("softmax")),
      .activation = read_activation(config),
  };
  pattern.router.renormalise = config.flag_or("norm_topk_prob", false);
  add_layers(model, pattern, "model.layers.{}.mlp.", all_layers(model.layers));
  return model;
}

}  // namespace

const Family families_list::kOlmoe{.model_type = "olmoe", .read = read};

}  // namespace sluice::checkpoint
