// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/families/common.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "checkpoint/text.h"
#include "core/error.h"

namespace sluice::checkpoint {
namespace {

constexpr IntRange kCount{0, 1024};

/// One flag a layer from mlp_layer_types or is_moe_layer; empty when there is neither.
std::vector<bool> listed_layers(const Config& config) {
  const auto kinds = config.texts_or_empty("mlp_layer_types");
  if (kinds.empty()) return config.flags_or_empty("is_moe_layer");
  std::vector<bool> sparse;
  for (const std::string& kind : kinds) {
    if (kind != "sparse" && kind != "dense")
      config.refuse("config_contradiction", "mlp_layer_types",
                    fmt::format("\"{}\" is no kind of layer; known are: sparse, dense", printable(kind)));
    sparse.push_back(kind == "sparse");
  }
  return sparse;
}

}  // namespace

FamilyInput text_part(const FamilyInput& input) {
  const auto text = input.config.object("text_config");
  if (!text) return input;
  return {.config = *text, .modelopt = input.modelopt, .files = input.files, .wrapper = input.config};
}

std::string layers_prefix(const ModelFiles& files) {
  for (const char* prefix : {"model.layers.", "model.language_model.layers.", "language_model.model.layers.",
                             "language_model.layers.", "backbone.layers.", "layers."})
    if (!files.below(prefix).empty()) return prefix;
  return "model.layers.";
}

Blueprint start(const FamilyInput& text) {
  Blueprint model{.layers = text.config.integer("num_hidden_layers", limits::kLayers),
                  .quantisation = read_quantisation(text)};
  if (!text.files.below(fmt::format("{}{}.", layers_prefix(text.files), model.layers)).empty())
    model.notes.push_back(fmt::format(
        "layers from {} on (multi-token prediction) are in the files and not used", model.layers));
  if (!text.files.below("mtp.").empty())
    model.notes.push_back("tensors below mtp. (multi-token prediction) are not used");
  return model;
}

std::vector<int> layers_after_dense(const Config& config, Blueprint& model) {
  const int dense = config.integer_or("first_k_dense_replace", {0, limits::kLayers.last}, 0);
  const auto listed = listed_layers(config);
  if (!listed.empty() && static_cast<int>(listed.size()) < model.layers)
    config.refuse("short_layer_list", config.has("mlp_layer_types") ? "mlp_layer_types" : "is_moe_layer",
                  fmt::format("it has {} entries, the model has {} layers", listed.size(), model.layers));
  std::vector<int> sparse;
  bool disagree = false;
  for (int layer = 0; layer < model.layers; ++layer) {
    const bool after = layer >= dense;
    const bool is_sparse = listed.empty() ? after : listed[static_cast<std::size_t>(layer)];
    disagree |= config.has("first_k_dense_replace") && is_sparse != after;
    if (is_sparse) sparse.push_back(layer);
  }
  if (disagree)
    model.notes.push_back(
        fmt::format("the list of layers says other layers are dense than first_k_dense_replace ({}) does; "
                    "the list counts",
                    dense));
  return sparse;
}

std::vector<int> every_sparse_step(const Config& config, int layers) {
  const int step = config.integer_or("decoder_sparse_step", limits::kLayers, 1);
  const auto dense = config.integers_or_empty("mlp_only_layers", {0, limits::kLayers.last});
  std::vector<int> sparse;
  for (int layer = 0; layer < layers; ++layer)
    if ((layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end())
      sparse.push_back(layer);
  return sparse;
}

std::vector<int> all_layers(int layers) {
  std::vector<int> all(static_cast<std::size_t>(layers));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::string one_of(const Config& config, std::string_view key, std::initializer_list<std::string_view> known,
                   const char* code) {
  const std::string text = config.text_or(key, *known.begin());
  if (std::find(known.begin(), known.end(), text) == known.end())
    config.refuse(code, key, fmt::format("known are: {}", fmt::join(known, ", ")));
  return text;
}

void add_layers(Blueprint& model, const LayerBlueprint& pattern, std::string_view block,
                std::span<const int> layers) {
  for (const int layer : layers) {
    LayerBlueprint& added = model.moe_layers.emplace_back(pattern);
    added.layer = layer;
    added.block = fmt::format(fmt::runtime(block), layer);
  }
}

void read_groups(const Config& config, RouterSpec& router, GroupScore score) {
  router.groups = config.integer_or("n_group", limits::kExperts, 1);
  router.groups_kept = config.integer_or("topk_group", limits::kExperts, router.groups);
  router.group_score = score;
  if (router.experts % router.groups != 0)
    config.refuse("config_contradiction", "n_group",
                  fmt::format("{} experts do not divide into that many groups", router.experts));
  if (router.groups_kept > router.groups)
    config.refuse("config_contradiction", "topk_group", fmt::format("there are {} groups", router.groups));
}

RouterSpec read_sigmoid_router(const Config& config, std::string_view experts_key) {
  for (const std::string_view key : {"scoring_func", "score_function"}) one_of(config, key, {"sigmoid"});
  one_of(config, "topk_method", {"noaux_tc"});
  RouterSpec router = read_router(config, experts_key, known<Score>("sigmoid"));
  read_groups(config, router, GroupScore::two_best);
  router.selection_bias = true;
  router.renormalise = config.flag_or("norm_topk_prob", true);
  router.scale = static_cast<float>(config.number_or("routed_scaling_factor", kLeastScale, 1));
  return router;
}

int read_shared_count(const Config& config, std::string_view key) {
  return config.integer_or(key, kCount, 0);
}

bool any_limit(std::span<const float> limits) {
  return std::any_of(limits.begin(), limits.end(), [](float limit) { return std::isfinite(limit); });
}

std::string_view stored_name(const ModelFiles& files, std::string_view block, int layer,
                             std::initializer_list<std::string_view> names) {
  const std::string prefix = fmt::format(fmt::runtime(block), layer);
  for (const std::string_view name : names)
    if (files.has(prefix + std::string(name))) return name;
  return *names.begin();
}

}  // namespace sluice::checkpoint
