// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE (30B-A3B, 235B-A22B): softmax over all experts, then the best, renormalised if norm_topk_prob
// says so. Some layers may be dense: those of mlp_only_layers, and all but every decoder_sparse_step-th.
#include <fmt/format.h>

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model{.layers = config.integer("num_hidden_layers", limits::kLayers),
                  .quantisation = read_quantisation(input)};
  refuse_unknown_limits(config, {});
  RouterSpec router = read_router(config, "num_experts", known<Score>("softmax"));
  router.renormalise = config.flag_or("norm_topk_prob", false);
  for (const int layer : every_sparse_step(config, model.layers))
    model.moe_layers.push_back({
        .layer = layer,
        .block = fmt::format("model.layers.{}.mlp.", layer),
        .names = {.shared = {}},
        .hidden = config.integer("hidden_size", limits::kWidth),
        .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
        .router = router,
        .activation = read_activation(config),
    });
  return model;
}

}  // namespace

const Family families_list::kQwen3Moe{.model_type = "qwen3_moe", .read = read};

}  // namespace sluice::checkpoint
