// SPDX-License-Identifier: Apache-2.0
// Qwen1.5 and Qwen2-MoE, Qwen3-Next, Qwen3.5: softmax over all experts, then the best. A shared expert of its
// own width is weighted by sigmoid(g . x). Qwen3.5 renormalises always, and stores all experts in two stacks;
// its FP8 releases store each alone.
#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

LayerBlueprint pattern_of(const Config& config) {
  LayerBlueprint pattern{
      .names = {.shared = "shared_expert"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_router(config, "num_experts", known<Score>("softmax")),
      .activation = read_activation(config),
  };
  pattern.shared =
      SharedBlueprint{.intermediate = config.integer("shared_expert_intermediate_size", limits::kWidth),
                      .gate = "gate_proj",
                      .up = "up_proj",
                      .down = "down_proj",
                      .sigmoid_gate = "shared_expert_gate.weight"};
  return pattern;
}

Blueprint read_with(const FamilyInput& input, LayerBlueprint pattern) {
  Blueprint model = start(input);
  refuse_unknown_limits(input.config, {});
  const std::string block = layers_prefix(input.files) + "{}.mlp.";
  const auto layers = every_sparse_step(input.config, model.layers);
  const std::string_view stack = "experts.gate_up_proj";
  const int first = layers.empty() ? 0 : layers.front();
  if (stored_name(input.files, block, first, {"", stack}) == stack) {
    pattern.names.expert = "experts";
    pattern.names.up = "gate_up_proj";
    pattern.read_experts = read_fused_stacks;
  }
  add_layers(model, pattern, block, layers);
  return model;
}

Blueprint read_qwen2(const FamilyInput& input) {
  LayerBlueprint pattern = pattern_of(input.config);
  pattern.router.renormalise = input.config.flag_or("norm_topk_prob", false);
  return read_with(input, std::move(pattern));
}

Blueprint read_next(const FamilyInput& input) {
  LayerBlueprint pattern = pattern_of(input.config);
  pattern.router.renormalise = input.config.flag_or("norm_topk_prob", true);
  return read_with(input, std::move(pattern));
}

Blueprint read_qwen35(const FamilyInput& whole) {
  const FamilyInput input = text_part(whole);
  LayerBlueprint pattern = pattern_of(input.config);
  pattern.router.renormalise = true;
  Blueprint model = read_with(input, std::move(pattern));
  if (!input.config.flag_or("norm_topk_prob", true))
    model.notes.push_back(
        "norm_topk_prob is false, and weights are renormalised all the same, as the model's own code does");
  return model;
}

}  // namespace

const Family families_list::kQwen2Moe{.model_type = "qwen2_moe", .read = read_qwen2};
const Family families_list::kQwen3Next{.model_type = "qwen3_next", .read = read_next};
const Family families_list::kQwen35Moe{.model_type = "qwen3_5_moe", .read = read_qwen35};
const Family families_list::kQwen35MoeText{.model_type = "qwen3_5_moe_text", .read = read_qwen35};

}  // namespace sluice::checkpoint
