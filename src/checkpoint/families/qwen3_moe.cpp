// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE (30B-A3B, 235B-A22B): softmax over all experts, then the best, renormalised if norm_topk_prob
// says so. Some layers may be dense: those of mlp_only_layers, and all but every decoder_sparse_step-th.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/families/family.h"

namespace sluice::checkpoint {
namespace {

std::vector<int> sparse_layers(const Config& config, int layers) {
  const int step = config.integer_or("decoder_sparse_step", limits::kLayers, 1);
  const auto dense = config.integers_or_empty("mlp_only_layers", {0, limits::kLayers.last});
  std::vector<int> sparse;
  for (int layer = 0; layer < layers; ++layer)
    if ((layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end())
      sparse.push_back(layer);
  return sparse;
}

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model{.layers = config.integer("num_hidden_layers", limits::kLayers),
                  .quantisation = read_quantisation(input)};
  refuse_unknown_limits(config, {});
  RouterSpec router = read_router(config, "num_experts", known<Score>("softmax"));
  router.renormalise = config.flag_or("norm_topk_prob", false);
  for (const int layer : sparse_layers(config, model.layers))
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
