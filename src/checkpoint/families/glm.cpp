// SPDX-License-Identifier: Apache-2.0
// GLM-4.5, 4.6, Air (glm4_moe), 4.7-Flash (glm4_moe_lite), GLM-5 (glm_moe_dsa): DeepSeek-V3's router and
// names, mostly without groups. GLM-5.3-Flash (glm5_next) also clamps gate and up of routed, shared and dense
// layers at swiglu_limit, although hidden_act says plain silu.
#include <fmt/format.h>

#include "checkpoint/families/deepseek_v3.h"

namespace sluice::checkpoint {
namespace {

Blueprint read_with(const FamilyInput& whole, bool limited) {
  const FamilyInput input = text_part(whole);
  const Config& config = input.config;
  Blueprint model = start(input);
  const LayerBlueprint pattern = deepseek_v3_layer(config);
  add_layers(model, pattern, layers_prefix(input.files) + "{}.mlp.", layers_after_dense(config, model));
  if (!limited) {
    refuse_unknown_limits(config, {});
    return model;
  }
  refuse_unknown_limits(config, {"swiglu_limit"});
  const auto limit = config.limits("swiglu_limit", model.layers);
  for (LayerBlueprint& layer : model.moe_layers) {
    layer.params.limit = limit[static_cast<std::size_t>(layer.layer)];
    if (layer.shared) layer.shared->params = layer.params;
  }
  model.notes.push_back(fmt::format("hidden_act is {}; {}", config.text("hidden_act"),
                                    any_limit(limit) ? "swiglu_limit clamps routed and shared experts"
                                                     : "there is no swiglu_limit, so nothing is clamped"));
  return model;
}

Blueprint read(const FamilyInput& input) { return read_with(input, false); }
Blueprint read_next(const FamilyInput& input) { return read_with(input, true); }

}  // namespace

const Family families_list::kGlm4Moe{.model_type = "glm4_moe", .read = read};
const Family families_list::kGlm4MoeLite{.model_type = "glm4_moe_lite", .read = read};
const Family families_list::kGlmMoeDsa{.model_type = "glm_moe_dsa", .read = read};
const Family families_list::kGlm5Next{.model_type = "glm5_next", .read = read_next};
const Family families_list::kGlm5NextText{.model_type = "glm5_next_text", .read = read_next};

}  // namespace sluice::checkpoint
