// SPDX-License-Identifier: Apache-2.0
// gpt-oss (20b, 120b). All experts in one tensor; gate and up rows take turns; biases everywhere; the
// router's softmax runs over the selected experts only. gate sigmoid(1.702 gate) (up + 1), both clamped at
// swiglu_limit first.
#include <fmt/format.h>

#include <cmath>

#include "checkpoint/families/family.h"

namespace sluice::checkpoint {
namespace {

// Constants of the family: no configuration has a key for slope and shift, and its own code never reads the
// limit.
constexpr float kSlope = 1.702f, kShift = 1.0f, kLimit = 7.0f;

std::vector<float> read_limits(const Config& config, int layers, std::vector<std::string>& notes) {
  if (config.has("swiglu_limit")) return config.limits("swiglu_limit", layers);
  notes.push_back(fmt::format("config.json has no swiglu_limit; the family's constant {} is used", kLimit));
  return std::vector<float>(static_cast<std::size_t>(layers), kLimit);
}

RouterSpec read_router_of(const Config& config) {
  RouterSpec router = read_router(config, "num_local_experts", known<Score>("softmax_selected"));
  if (config.integer_or("experts_per_token", limits::kExperts, router.top_k) != router.top_k)
    config.refuse("config_contradiction", "experts_per_token",
                  fmt::format("num_experts_per_tok is {}", router.top_k));
  router.bias = true;
  return router;
}

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model{.layers = config.integer("num_hidden_layers", limits::kLayers),
                  .quantisation = read_quantisation(input)};
  const std::string activation = config.text_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    config.refuse("unknown_activation", "hidden_act", "this family has one activation and calls it silu");
  refuse_unknown_limits(config, {"swiglu_limit"});
  const auto limit = read_limits(config, model.layers, model.notes);
  for (int layer = 0; layer < model.layers; ++layer)
    model.moe_layers.push_back({
        .layer = layer,
        .block = fmt::format("model.layers.{}.mlp.", layer),
        .names = {.router = "router",
                  .router_bias = "router.bias",
                  .expert = "experts",
                  .gate = {},
                  .up = "gate_up_proj",
                  .down = "down_proj"},
        .hidden = config.integer("hidden_size", limits::kWidth),
        .intermediate = config.integer("intermediate_size", limits::kWidth),
        .router = read_router_of(config),
        .activation = known<Activation>("silu"),
        .params = {.limit = limit[static_cast<std::size_t>(layer)], .slope = kSlope, .shift = kShift},
        .read_experts = read_interleaved_stack,
    });
  return model;
}

}  // namespace

const Family families_list::kGptOss{.model_type = "gpt_oss", .read = read};

}  // namespace sluice::checkpoint
