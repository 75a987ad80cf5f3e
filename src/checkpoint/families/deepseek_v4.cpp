// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4 (Flash, Pro, their Base checkpoints and NVFP4 re-quantisations), and V4.1-Flash, which has no
// layers that go by token id, tiles of 32 x 32 where V4's FP8 has 128 x 128, and a second bias for image
// tokens.
//
// Scores are sqrt(softplus(logit)); the first num_hash_layers layers take their experts from a table indexed
// by token id, the others add a bias for selecting only; weights are always renormalised, then scaled. Routed
// and shared experts are both clamped at swiglu_limit although hidden_act says plain silu.
//
// What the routed experts are stored in is not in quantization_config ("fp8", for everything else) but in
// expert_dtype (absent means fp4), or in moe_quant_algo of a re-quantised checkpoint.
#include <fmt/format.h>

#include <cmath>

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {
namespace {

constexpr IntRange kSharedExperts{0, 64};

/// The tensors as DeepSeek names them, and as transformers does.
struct Naming {
  std::string_view block;
  BlockNames names;
  std::string_view image_bias;  // V4.1: selects for image tokens, of which this library does not know
};
constexpr Naming kDeepseek{
    "layers.{}.ffn.",
    {.selection_bias = "gate.bias", .token_table = "gate.tid2eid", .gate = "w1", .up = "w3", .down = "w2"},
    "gate.bias_vl"};
constexpr Naming kTransformers{
    "model.layers.{}.mlp.",
    {.selection_bias = "gate.e_score_correction_bias", .token_table = "gate.tid2eid"},
    "gate.e_score_correction_bias_vl"};

const Scheme& routed_scheme(const Config& config) {
  const auto quantisation = config.object("quantization_config");
  if (quantisation && quantisation->has("moe_quant_algo")) {
    if (quantisation->text("moe_quant_algo") != "NVFP4")
      quantisation->refuse("unknown_quantisation", "moe_quant_algo", "known is: NVFP4");
    return schemes::kModeloptNvfp4;
  }
  const std::string dtype = config.text_or("expert_dtype", "fp4");
  if (dtype == "fp8") return schemes::kFp8Block;
  if (dtype != "fp4") config.refuse("unknown_quantisation", "expert_dtype", "known are: fp4, fp8");
  return schemes::kDeepseekFp4;
}

Quantisation read_quantisation_of(const FamilyInput& input) {
  const Config& config = input.config;
  Quantisation read = read_quantisation(input);
  if (read.schemes.empty()) return read;  // a checkpoint that was turned into BF16
  const Scheme& routed = routed_scheme(config);
  read.words += fmt::format(", routed experts {}", routed.name);
  // "shared_experts" is another component than "experts".
  read.schemes.insert(read.schemes.begin(), {ModuleRules({"experts"}, config.file_name()), &routed});
  return read;
}

RouterSpec read_router_of(const Config& config, bool by_token_id) {
  const std::string score = config.text_or("scoring_func", "sqrtsoftplus");
  if (score != "sqrtsoftplus") config.refuse("unknown_router", "scoring_func", "known is: sqrtsoftplus");
  if (config.integer_or("n_group", limits::kExperts, 1) != 1)
    config.refuse("unknown_router", "n_group", "this family has no expert groups");
  RouterSpec router = read_router(config, "n_routed_experts", known<Score>("sqrt_softplus"));
  router.selection_bias = !by_token_id;
  router.by_token_id = by_token_id;
  router.renormalise = true;  // whatever norm_topk_prob says, as the model's own code does
  router.scale = static_cast<float>(config.number_or("routed_scaling_factor", kLeastScale, 1));
  return router;
}

void add_notes(const Config& config, const ModelFiles& files, std::vector<std::string>& notes) {
  const std::string limit = config.has("swiglu_limit") ? "swiglu_limit clamps routed and shared experts"
                                                       : "there is no swiglu_limit, so nothing is clamped";
  notes.push_back(fmt::format("hidden_act is {}; {}", config.text_or("hidden_act", "silu"), limit));
  if (!files.below("mtp.").empty())
    notes.push_back("tensors below mtp. (multi-token prediction) are not used");
  if (!config.flag_or("norm_topk_prob", true))
    notes.push_back(
        "norm_topk_prob is false, and weights are renormalised all the same, as the model's own code does");
}

Blueprint read(const FamilyInput& input) {
  const Config& config = input.config;
  Blueprint model{.layers = config.integer("num_hidden_layers", limits::kLayers),
                  .quantisation = read_quantisation_of(input)};
  const Activation activation = read_activation(config);
  if (activation != known<Activation>("silu"))
    config.refuse("unknown_activation", "hidden_act", "this family clamps, and only silu has a clamp");
  refuse_unknown_limits(config, {"swiglu_limit"});
  add_notes(config, input.files, model.notes);
  const auto limit = config.limits("swiglu_limit", model.layers);
  const int hash_layers = config.integer_or("num_hash_layers", {0, limits::kLayers.last}, 0);
  const int intermediate = config.integer("moe_intermediate_size", limits::kWidth);
  const int shared = config.integer_or("n_shared_experts", kSharedExperts, 0);
  const Naming& naming = input.files.below("layers.").empty() ? kTransformers : kDeepseek;
  if (input.files.has(fmt::format(fmt::runtime(naming.block), hash_layers) + std::string(naming.image_bias)))
    model.notes.push_back(
        "experts of image tokens are selected with a bias of their own in this model; here all "
        "tokens are text");
  for (int layer = 0; layer < model.layers; ++layer) {
    const bool by_token_id = layer < hash_layers;
    LayerBlueprint blueprint{
        .layer = layer,
        .block = fmt::format(fmt::runtime(naming.block), layer),
        .names = naming.names,
        .hidden = config.integer("hidden_size", limits::kWidth),
        .intermediate = intermediate,
        .router = read_router_of(config, by_token_id),
        .activation = activation,
        .params = {.limit = limit[static_cast<std::size_t>(layer)]},
        .vocabulary = by_token_id ? config.integer("vocab_size", limits::kVocabulary) : 0,
    };
    blueprint.not_needed = {naming.image_bias};
    if (by_token_id) blueprint.not_needed.push_back(naming.names.selection_bias);
    if (shared > 0) blueprint.shared = {.intermediate = shared * intermediate, .params = blueprint.params};
    model.moe_layers.push_back(std::move(blueprint));
  }
  return model;
}

}  // namespace

const Family families_list::kDeepseekV4{.model_type = "deepseek_v4", .read = read};
const Family families_list::kDeepseekV41{.model_type = "deepseek_v4_1", .read = read};

}  // namespace sluice::checkpoint
