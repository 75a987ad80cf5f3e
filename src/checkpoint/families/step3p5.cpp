// SPDX-License-Identifier: Apache-2.0
// Step-3.5-Flash and Step-3.7-Flash. Sigmoid, a bias for selecting, renormalised, scaled. The SiLU is clamped
// after it was taken, by two lists with an entry a layer: one for routed experts, one for the shared expert.
// Most entries are 0, which is no limit. Experts lie in three stacks; the shared expert is a neighbour.
//
// Sources disagree about the shared limit of layer 43 of the published models; the list in config.json
// counts.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

RouterSpec read_router_of(const Config& config) {
  one_of(config, "moe_router_activation", {"sigmoid"});
  const int experts = config.integer("moe_num_experts", limits::kExperts);
  const int top_k = config.integer("moe_top_k", limits::kExperts);
  if (top_k > experts)
    config.refuse("config_out_of_range", "moe_top_k", fmt::format("there are only {} experts", experts));
  return {.score = known<Score>("sigmoid"),
          .experts = experts,
          .top_k = top_k,
          .selection_bias = config.flag_or("use_moe_router_bias", true),
          .renormalise = config.flag_or("norm_expert_weight", true),
          .scale = static_cast<float>(config.number_or("moe_router_scaling_factor", kLeastScale, 1))};
}

/// moe_layers_enum: "3,4,5" or a list of numbers.
std::vector<int> layers_of(const Config& config, int layers) {
  std::vector<std::int64_t> listed;
  if (config.is_text("moe_layers_enum")) {
    const std::string text = config.text("moe_layers_enum");
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
      std::int64_t layer = -1;
      const auto [next, error] = std::from_chars(at, end, layer);
      if (error != std::errc() || (next != end && *next != ','))
        config.refuse("config_wrong_type", "moe_layers_enum",
                      "numbers with commas between them were expected");
      listed.push_back(layer);
      at = next + 1;
    }
  } else {
    listed = config.integers_or_empty("moe_layers_enum", {0, limits::kLayers.last});
  }
  if (listed.empty())
    config.refuse("config_missing_key", "moe_layers_enum", "it says which layers have experts");
  std::vector<int> sparse;
  for (int layer = 0; layer < layers; ++layer)
    if (std::find(listed.begin(), listed.end(), layer) != listed.end()) sparse.push_back(layer);
  return sparse;
}

Blueprint read(const FamilyInput& whole) {
  const FamilyInput input = text_part(whole);
  const Config& config = input.config;
  Blueprint model = start(input);
  refuse_unknown_limits(config, {"swiglu_limits", "swiglu_limits_shared"});
  one_of(config, "hidden_act", {"silu"}, "unknown_activation");
  LayerBlueprint pattern{
      .parts = {"moe.", "share_expert."},
      .names = {.router = "moe.gate",
                .selection_bias = "moe.router_bias",
                .expert = "moe",
                .shared = "share_expert"},
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer("moe_intermediate_size", limits::kWidth),
      .router = read_router_of(config),
      .activation = known<Activation>("silu"),
      .read_experts = read_separate_stacks,
  };
  const char* width = config.has("share_expert_dim") ? "share_expert_dim" : "share_expert_dims";
  pattern.shared = SharedBlueprint{.intermediate = config.integer(width, limits::kWidth)};
  add_layers(model, pattern, layers_prefix(input.files) + "{}.", layers_of(config, model.layers));
  const auto routed = config.limits("swiglu_limits", model.layers),
             shared = config.limits("swiglu_limits_shared", model.layers);
  for (LayerBlueprint& layer : model.moe_layers) {
    const auto at = static_cast<std::size_t>(layer.layer);
    layer.params.limit = routed[at];
    layer.shared->params.limit = shared[at];
    if (std::isfinite(routed[at]) || std::isfinite(shared[at]))
      layer.activation = known<Activation>("silu_then_clamp");
  }
  return model;
}

}  // namespace

const Family families_list::kStep3p5{.model_type = "step3p5", .read = read};
const Family families_list::kStep3p7{.model_type = "step3p7", .read = read};

}  // namespace sluice::checkpoint
