// SPDX-License-Identifier: Apache-2.0
// ERNIE-4.5: softmax over all experts; a bias is added to the probabilities for selecting only; weights are
// the probabilities of the selected, renormalised. The bias is stored as a row, [1, experts].
#include <fmt/format.h>

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

RouterSpec read_router_of(const Config& config) {
  const int experts = config.integer("moe_num_experts", limits::kExperts);
  const int top_k = config.integer("moe_k", limits::kExperts);
  if (top_k > experts)
    config.refuse("config_out_of_range", "moe_k", fmt::format("there are only {} experts", experts));
  return {.score = known<Score>("softmax"),
          .experts = experts,
          .top_k = top_k,
          .selection_bias = config.flag_or("moe_use_aux_free", true),
          .renormalise = true};
}

std::vector<int> layers_of(const Config& config, int layers) {
  const int first = config.integer_or("moe_layer_start_index", {0, limits::kLayers.last}, 1);
  const int last = config.integer_or("moe_layer_end_index", {-1, limits::kLayers.last}, -1);
  const int step = config.integer_or("moe_layer_interval", limits::kLayers, 1);
  std::vector<int> sparse;
  for (int layer = first; layer < layers; ++layer)
    if ((last < 0 || layer <= last) && (layer + 1) % step == 0) sparse.push_back(layer);
  return sparse;
}

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  LayerBlueprint pattern{
      .names = {.selection_bias = "moe_statics.e_score_correction_bias"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_router_of(config),
      .activation = read_activation(config),
  };
  if (const int shared = read_shared_count(config, "moe_num_shared_experts"); shared > 0)
    pattern.shared = {.intermediate = shared * pattern.intermediate};
  add_layers(model, pattern, layers_prefix(input.files) + "{}.mlp.", layers_of(config, model.layers));
  return model;
}

}  // namespace

const Family families_list::kErnie45Moe{.model_type = "ernie4_5_moe", .read = read};

}  // namespace sluice::checkpoint
