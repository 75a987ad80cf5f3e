// SPDX-License-Identifier: Apache-2.0
// A model_type that nobody described. Names and keys that most families share are looked for; what would
// change the result and cannot be known from them is refused, and everything that was taken for granted is a
// note.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "checkpoint/families/common.h"
#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

using Keys = std::initializer_list<std::string_view>;

[[noreturn]] void refuse(const Config& config, std::string why) {
  std::string names;
  for (const Family* family : families())
    names += (names.empty() ? "" : ", ") + std::string(family->model_type);
  fail(ErrorKind::unsupported,
       {.code = "unknown_family",
        .what = fmt::format("the model_type \"{}\" is not known, and it is not like other families: {}",
                            printable(config.text_or("model_type", "none")), why),
        .file = config.file_name(),
        .why = fmt::format("known are: {}", names),
        .todo = "docs/adding/family.md says how a family is added"});
}

/// The one of `keys` that the configuration has, or empty.
std::string_view key_of(const Config& config, Keys keys) {
  for (const std::string_view key : keys)
    if (config.has(key)) return key;
  return {};
}

std::string_view needed_key(const Config& config, std::string_view what, Keys keys) {
  const std::string_view key = key_of(config, keys);
  if (key.empty()) refuse(config, fmt::format("none of {} says {}", fmt::join(keys, ", "), what));
  return key;
}

/// Keys that change what an expert computes, in ways that differ from family to family.
void refuse_what_has_no_convention(const Config& config) {
  refuse_unknown_limits(config, {});
  for (const std::string& key : config.keys())
    for (const char* part : {"situ", "latent", "soft_cap", "expert_scale", "residual_moe", "activation_beta"})
      if (key.find(part) != key.npos && !key.starts_with("kv_"))
        refuse(config, fmt::format("{} may change what experts compute", printable(key)));
}

/// A way to lay out a block that several families share.
struct Layout {
  std::string_view block;
  BlockNames names;
};
constexpr std::array kLayouts{
    Layout{"{}.mlp.", {}},
    Layout{"{}.block_sparse_moe.", {.gate = "w1", .up = "w3", .down = "w2"}},
    Layout{"{}.feed_forward.", {.gate = "w1", .up = "w3", .down = "w2"}},
    Layout{"{}.block_sparse_moe.", {}},
    Layout{"{}.feed_forward.", {}},
};

struct Found {
  std::string block;
  BlockNames names;
  std::vector<int> layers;
};

/// Layers whose first expert has the layout's up matrix under any suffix, and whose router is there.
Found find_layers(const FamilyInput& input, int layers) {
  const std::string prefix = layers_prefix(input.files);
  for (const Layout& layout : kLayouts) {
    Found found{.block = prefix + std::string(layout.block), .names = layout.names, .layers = {}};
    for (int layer = 0; layer < layers; ++layer) {
      const std::string block = fmt::format(fmt::runtime(found.block), layer);
      const bool experts = !input.files.below(fmt::format("{}experts.0.{}.", block, layout.names.up)).empty();
      if (experts && input.files.has(block + "gate.weight")) found.layers.push_back(layer);
    }
    if (!found.layers.empty()) return found;
  }
  refuse(input.config,
         fmt::format("there is no {{}}.mlp.experts.0.up_proj, block_sparse_moe.experts.0.w3 or the "
                     "like beside a gate.weight below {}",
                     prefix));
}

std::string_view selection_bias(const FamilyInput& input, const Found& found) {
  return stored_name(input.files, found.block, found.layers.front(),
                     {"", "gate.e_score_correction_bias", "e_score_correction_bias", "gate.expert_bias",
                      "expert_bias", "router_bias"});
}

/// The score: as a key says it, or softmax where nothing speaks of anything else.
std::string read_score(const Config& config, bool biased, std::vector<std::string>& assumed) {
  const std::string_view key =
      key_of(config, {"scoring_func", "score_function", "score_func", "moe_router_activation_func",
                      "moe_router_activation", "router_activation"});
  if (key.empty()) {
    if (biased || !config.has("norm_topk_prob"))
      refuse(config, "nothing says how the router scores (scoring_func)");
    assumed.push_back("the router scores by softmax over all experts");
    return "softmax";
  }
  const std::string score = config.text(key);
  if (score == "softmax" || score == "sigmoid") return score;
  if (score == "sqrtsoftplus") return "sqrt_softplus";
  refuse(config, fmt::format("the router's {} is \"{}\", known are softmax, sigmoid, sqrtsoftplus", key,
                             printable(score)));
}

RouterSpec read_router_of(const FamilyInput& input, const Found& found, std::vector<std::string>& assumed) {
  const Config& config = input.config;
  const auto experts_key =
      needed_key(config, "how many experts there are",
                 {"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"});
  const auto top_key = needed_key(config, "how many experts a token has",
                                  {"num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk"});
  const auto norm_key = needed_key(config, "whether weights are divided by their sum",
                                   {"norm_topk_prob", "moe_renormalize", "norm_expert_weight", "route_norm"});
  const bool biased = !selection_bias(input, found).empty();
  RouterSpec router{.score = known<Score>(read_score(config, biased, assumed)),
                    .experts = config.integer(experts_key, limits::kExperts),
                    .top_k = config.integer(top_key, limits::kExperts),
                    .selection_bias = biased,
                    .renormalise = config.flag_or(norm_key, false)};
  if (router.top_k > router.experts)
    config.refuse("config_out_of_range", top_key, fmt::format("there are only {} experts", router.experts));
  const auto scale_key = key_of(
      config, {"routed_scaling_factor", "moe_router_scaling_factor", "router_scaling_factor", "route_scale"});
  if (!scale_key.empty()) router.scale = static_cast<float>(config.number_or(scale_key, kLeastScale, 1));
  read_groups(config, router, biased ? GroupScore::two_best : GroupScore::best);
  if (router.groups > 1)
    assumed.push_back(
        fmt::format("a group of experts is ranked by {}", biased ? "the sum of its two best" : "its best"));
  if (biased) assumed.push_back("the router's bias is for selecting and not part of the weights");
  return router;
}

std::optional<SharedBlueprint> read_shared(const FamilyInput& input, const Found& found,
                                           LayerBlueprint& pattern) {
  const Config& config = input.config;
  const std::string block = fmt::format(fmt::runtime(found.block), found.layers.front());
  for (const std::string_view name : {"shared_experts", "shared_expert"}) {
    if (input.files.below(fmt::format("{}{}.", block, name)).empty()) continue;
    pattern.names.shared = name;
    const auto count = key_of(config, {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"});
    const auto width =
        key_of(config, {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"});
    if (count.empty() && width.empty()) refuse(config, "nothing says how wide the shared expert is");
    SharedBlueprint shared{.intermediate = width.empty()
                                               ? read_shared_count(config, count) * pattern.intermediate
                                               : config.integer(width, limits::kWidth)};
    if (!input.files.below(fmt::format("{}{}.up_proj.", block, name)).empty()) {
      shared.gate = "gate_proj";
      shared.up = "up_proj";
      shared.down = "down_proj";
    }
    if (input.files.has(block + "shared_expert_gate.weight"))
      shared.sigmoid_gate = "shared_expert_gate.weight";
    return shared;
  }
  return std::nullopt;
}

Blueprint read(const FamilyInput& whole) {
  const FamilyInput input = text_part(whole);
  const Config& config = input.config;
  if (key_of(config, {"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"}).empty())
    refuse(config, "it has no number of experts");
  refuse_what_has_no_convention(config);
  Blueprint model = start(input);
  const Found found = find_layers(input, model.layers);
  std::vector<std::string> assumed;
  LayerBlueprint pattern{
      .names = found.names,
      .hidden = config.integer("hidden_size", limits::kWidth),
      .intermediate = config.integer(
          needed_key(config, "how wide an expert is", {"moe_intermediate_size", "intermediate_size"}),
          limits::kWidth),
      .router = read_router_of(input, found, assumed),
      .activation = read_activation(
          config,
          needed_key(config, "the activation", {"hidden_act", "hidden_activation", "mlp_hidden_act"})),
  };
  pattern.names.selection_bias = selection_bias(input, found);
  pattern.shared = read_shared(input, found, pattern);
  add_layers(model, pattern, found.block, found.layers);
  assumed.push_back(fmt::format("{} of {} with {} as the gate, before it is multiplied",
                                pattern.activation.str(), found.block, found.names.gate));
  model.notes.push_back(
      fmt::format("the model_type \"{}\" is not known and was read by conventions; taken for granted is that "
                  "{}, and that the "
                  "block has nothing else",
                  printable(config.text_or("model_type", "none")), fmt::join(assumed, "; ")));
  return model;
}

}  // namespace

const Family families_list::kGeneric{.model_type = "generic", .read = read};

}  // namespace sluice::checkpoint
