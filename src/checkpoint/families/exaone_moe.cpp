// SPDX-License-Identifier: Apache-2.0
// K-EXAONE and K-EXAONE-2: DeepSeek-V3's router and names. The second clamps by a list with an entry a layer,
// the same for routed, shared and dense layers; the list tells the two apart, the model_type does not.
#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {"swiglu_limits"});
  const std::string block = layers_prefix(input.files) + "{}.mlp.";
  const auto layers = layers_after_dense(config, model);
  LayerBlueprint pattern{
      .names = {.selection_bias = stored_name(input.files, block, layers.empty() ? 0 : layers.front(),
                                              {"gate.e_score_correction_bias", "e_score_correction_bias"})},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_sigmoid_router(config, "num_experts"),
      .activation = read_activation(config),
  };
  if (const int shared = read_shared_count(config, "num_shared_experts"); shared > 0)
    pattern.shared = {.intermediate = shared * pattern.intermediate};
  add_layers(model, pattern, block, layers);
  const auto limit = config.limits("swiglu_limits", model.layers);
  for (LayerBlueprint& layer : model.moe_layers) {
    layer.params.limit = limit[static_cast<std::size_t>(layer.layer)];
    if (layer.shared) layer.shared->params = layer.params;
  }
  if (any_limit(limit))
    model.notes.push_back(
        "swiglu_limits clamps before the activation, routed and shared alike: so other engines read it; the "
        "authors' own code was not at hand");
  return model;
}

}  // namespace

const Family families_list::kExaoneMoe{.model_type = "exaone_moe", .read = read};

}  // namespace sluice::checkpoint
