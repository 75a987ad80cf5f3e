// SPDX-License-Identifier: Apache-2.0
// Llama-4 (Scout, Maverick): the best logit, whose sigmoid multiplies the input of the expert, not its
// output. Experts lie in two stacks that are transposed, [experts, inputs, outputs]; quantised releases store
// each alone. The shared expert is as wide as a routed one.
#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

std::vector<int> layers_of(const Config& config, int layers) {
  std::vector<int> sparse;
  for (const std::int64_t layer : config.integers_or_empty("moe_layers", {0, limits::kLayers.last}))
    if (layer < layers) sparse.push_back(static_cast<int>(layer));
  if (!sparse.empty()) return sparse;
  const int step = config.integer_or("interleave_moe_layer_step", limits::kLayers, 1);
  for (int layer = step - 1; layer < layers; layer += step) sparse.push_back(layer);
  return sparse;
}

Blueprint read(const FamilyInput& whole) {
  const FamilyInput input = text_part(whole);
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  const std::string block = layers_prefix(input.files) + "{}.feed_forward.";
  const auto layers = layers_of(config, model.layers);
  LayerBlueprint pattern{
      .names = {.router = "router", .shared = "shared_expert"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("intermediate_size", limits::kWidth),
      .router = read_router(config, "num_local_experts", known<Score>("sigmoid_selected")),
      .activation = read_activation(config),
      .weight_on_input = true,
  };
  pattern.shared = SharedBlueprint{
      .intermediate = pattern.intermediate, .gate = "gate_proj", .up = "up_proj", .down = "down_proj"};
  const std::string_view stack = "experts.gate_up_proj";
  if (stored_name(input.files, block, layers.empty() ? 0 : layers.front(), {"", stack}) == stack) {
    pattern.names.expert = "experts";
    pattern.names.up = "gate_up_proj";
    pattern.read_experts = read_transposed_stacks;
  }
  add_layers(model, pattern, block, layers);
  return model;
}

}  // namespace

const Family families_list::kLlama4{.model_type = "llama4", .read = read};
const Family families_list::kLlama4Text{.model_type = "llama4_text", .read = read};

}  // namespace sluice::checkpoint
