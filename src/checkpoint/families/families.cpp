// SPDX-License-Identifier: Apache-2.0
// The list of families, and what most of them read the same way.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "checkpoint/families/family.h"
#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {

std::span<const Family* const> families() {
  using namespace families_list;
  static constexpr std::array kAll{
      &kGptOss,        &kDeepseekV4,  &kDeepseekV41,  &kMixtral,          &kQwen3Moe,         &kDeepseekV2,
      &kDeepseekV3,    &kDeepseekV32, &kKimiK2,       &kKimiK25,          &kGlm4Moe,          &kGlm4MoeLite,
      &kGlmMoeDsa,     &kGlm5Next,    &kGlm5NextText, &kQwen2Moe,         &kQwen3Next,        &kQwen35Moe,
      &kQwen35MoeText, &kOlmoe,       &kGraniteMoe,   &kGraniteMoeShared, &kGraniteMoeHybrid, &kMinimaxM2,
      &kMinimaxM3,     &kMinimaxM3Vl, &kStep3p5,      &kStep3p7,          &kBailingMoeV2,     &kBailingMoeV3,
      &kExaoneMoe,     &kErnie45Moe,  &kLlama4,       &kLlama4Text,       &kNemotronH,        &kGemma4,
      &kGemma4Text,    &kKimiK3,      &kKimiLinear};
  return kAll;
}

Quantisation read_quantisation(const FamilyInput& input) {
  if (input.modelopt) return read_modelopt_quantisation(*input.modelopt);
  const bool outside = input.wrapper && !input.config.has("quantization_config");
  return read_quantisation(outside ? *input.wrapper : input.config);
}

Activation read_activation(const Config& config, std::string_view key) {
  struct Known {
    std::string_view config, activation;
  };
  constexpr Known kKnown[] = {
      {"silu", "silu"},          {"swish", "silu"},  {"gelu", "gelu_erf"}, {"gelu_pytorch_tanh", "gelu_tanh"},
      {"gelu_new", "gelu_tanh"}, {"relu2", "relu2"},
  };
  const std::string text = config.text(key);
  for (const Known& spelling : kKnown)
    if (spelling.config == text) return known<Activation>(spelling.activation);
  config.refuse("unknown_activation", key,
                "known are: silu, swish, gelu, gelu_pytorch_tanh, gelu_new, relu2");
}

void refuse_unknown_limits(const Config& config, std::initializer_list<std::string_view> known_keys) {
  for (const std::string& key : config.keys()) {
    const bool about_limits = key.find("swiglu") != key.npos || key.find("clamp") != key.npos;
    const bool is_known = std::find(known_keys.begin(), known_keys.end(), key) != known_keys.end();
    require(!about_limits || is_known, ErrorKind::unsupported, [&] {
      return ErrorInfo{
          .code = "unknown_limit",
          .what = fmt::format("the configuration has {}, which this family does not define", printable(key)),
          .file = config.file_name(),
          .why = "a limit that is not applied makes outputs wrong without a word",
          .todo = "Remove the key if it has no meaning, otherwise the family needs code for it"};
    });
  }
}

RouterSpec read_router(const Config& config, std::string_view experts_key, Score score) {
  // transformers 5 writes num_local_experts for many families that were published with num_experts.
  constexpr std::string_view kResaved = "num_local_experts";
  const bool resaved = !config.has(experts_key) && config.has(kResaved);
  const int experts = config.integer(resaved ? kResaved : experts_key, limits::kExperts);
  if (!resaved && config.has(kResaved) && config.integer(kResaved, limits::kExperts) != experts)
    config.refuse("config_contradiction", kResaved, fmt::format("{} is {}", experts_key, experts));
  const int top_k = config.integer("num_experts_per_tok", limits::kExperts);
  if (top_k > experts)
    config.refuse("config_out_of_range", "num_experts_per_tok",
                  fmt::format("there are only {} experts ({})", experts, experts_key));
  return {.score = score, .experts = experts, .top_k = top_k};
}

}  // namespace sluice::checkpoint
