// SPDX-License-Identifier: Apache-2.0
// What several families read the same way, beyond family.h: wrapped configurations, layers that are dense,
// the router of DeepSeek-V3.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/families/family.h"

namespace sluice::checkpoint {

inline constexpr double kLeastScale = 1e-6;  // a factor of zero would silence every expert

/// The part of the configuration that describes the language model: text_config where there is one.
FamilyInput text_part(const FamilyInput& input);

/// "model.layers.", or what a model with other parts than language calls it. The first of the known prefixes
/// below which there is a tensor.
std::string layers_prefix(const ModelFiles& files);

/// A blueprint with the number of layers, the quantisation, and a note on layers of the files beyond that
/// number (multi-token prediction).
Blueprint start(const FamilyInput& text);

/// Layers that have experts: by mlp_layer_types ("sparse") or is_moe_layer where there is one, otherwise all
/// from first_k_dense_replace on. Says so where the two disagree.
std::vector<int> layers_after_dense(const Config& config, Blueprint& model);

/// Layers that have experts in the manner of Qwen: not those of mlp_only_layers, and every
/// decoder_sparse_step-th.
std::vector<int> every_sparse_step(const Config& config, int layers);

std::vector<int> all_layers(int layers);

/// Refuses the value of `key` unless it is absent or one of `known`. Returns it, or `known`'s first.
std::string one_of(const Config& config, std::string_view key, std::initializer_list<std::string_view> known,
                   const char* code = "unknown_router");

/// `pattern` for each of `layers`; `block` has {} for the number.
void add_layers(Blueprint& model, const LayerBlueprint& pattern, std::string_view block,
                std::span<const int> layers);

/// n_group and topk_group.
void read_groups(const Config& config, RouterSpec& router, GroupScore score);

/// Sigmoid of every logit, a bias for selecting only, groups by the sum of their two best, weights divided by
/// their sum if norm_topk_prob says so (as it does when absent), times routed_scaling_factor.
RouterSpec read_sigmoid_router(const Config& config, std::string_view experts_key);

/// n_shared_experts, num_shared_experts: how many, 0 when absent.
int read_shared_count(const Config& config, std::string_view key);

/// True when some limit is finite.
bool any_limit(std::span<const float> limits);

/// The name below `block` of layer `layer` that is in the files, or the first of them.
std::string_view stored_name(const ModelFiles& files, std::string_view block, int layer,
                             std::initializer_list<std::string_view> names);

}  // namespace sluice::checkpoint
