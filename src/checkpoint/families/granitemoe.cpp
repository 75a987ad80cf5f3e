// SPDX-License-Identifier: Apache-2.0
// Granite-MoE 3 and 4 (granitemoe, granitemoeshared, granitemoehybrid): the best logits, then their softmax.
// Experts lie in two stacks, gate and up in one of them; so does the shared expert, which is a neighbour of
// the block. residual_multiplier belongs to the residual stream and not to the block.
#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {});
  if (config.integer_or("num_local_experts", {0, limits::kExperts.last}, 0) == 0) {
    model.notes.push_back("num_local_experts is 0: this Granite is dense");
    return model;
  }
  LayerBlueprint pattern{
      .parts = {"block_sparse_moe."},
      .names = {.router = "block_sparse_moe.router.layer",
                .expert = "block_sparse_moe",
                .shared = "shared_mlp",
                .gate = {},
                .up = "input_linear",
                .down = "output_linear"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("intermediate_size", limits::kWidth),
      .router = read_router(config, "num_local_experts", known<Score>("softmax_selected")),
      .activation = read_activation(config),
      .read_experts = read_fused_stacks,
  };
  if (const int shared = config.integer_or("shared_intermediate_size", {0, limits::kWidth.last}, 0);
      shared > 0) {
    pattern.parts.push_back("shared_mlp.");
    pattern.shared = {.intermediate = shared, .gate_in_up = true};
  }
  add_layers(model, pattern, layers_prefix(input.files) + "{}.", all_layers(model.layers));
  return model;
}

}  // namespace

const Family families_list::kGraniteMoe{.model_type = "granitemoe", .read = read};
const Family families_list::kGraniteMoeShared{.model_type = "granitemoeshared", .read = read};
const Family families_list::kGraniteMoeHybrid{.model_type = "granitemoehybrid", .read = read};

}  // namespace sluice::checkpoint
