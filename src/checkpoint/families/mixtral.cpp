// SPDX-License-Identifier: Apache-2.0
// Mixtral (8x7B, 8x22B): w1 is gate, w3 is up, w2 is down. Softmax over all experts, then the best,
// renormalised.
#include <fmt/format.h>

#include "checkpoint/families/family.h"

namespace sluice::checkpoint {
namespace {

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model{.layers = config.integer("num_hidden_layers", limits::kLayers),
                  .quantisation = read_quantisation(input)};
  refuse_unknown_limits(config, {});
  RouterSpec router = read_router(config, "num_local_experts", known<Score>("softmax"));
  router.renormalise = true;
  for (int layer = 0; layer < model.layers; ++layer)
    model.moe_layers.push_back({
        .layer = layer,
        .block = fmt::format("model.layers.{}.block_sparse_moe.", layer),
        .names = {.shared = {}, .gate = "w1", .up = "w3", .down = "w2"},
        .hidden = config.integer("hidden_size", limits::kWidth),
        .intermediate = config.integer("intermediate_size", limits::kWidth),
        .router = router,
        .activation = read_activation(config),
    });
  return model;
}

}  // namespace

const Family families_list::kMixtral{.model_type = "mixtral", .read = read};

}  // namespace sluice::checkpoint
