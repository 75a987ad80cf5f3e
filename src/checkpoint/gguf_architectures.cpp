// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_architectures.h"

#include <algorithm>
#include <iterator>

namespace sluice::checkpoint {
namespace {

// One line an architecture, or a few. Adding one: read its file in llama.cpp's src/models for the keys that
// it reads and the arguments of build_moe_ffn, and say them here.
constexpr Architecture kAll[] = {
    {.name = "gpt-oss",
     .family = "gpt_oss",
     .score = "softmax_selected",
     .biases = Has::yes,
     .clamp = Clamp::gpt_oss},
    {.name = "llama", .family = "mixtral", .renormalise = true, .wide = Wide::dense},
    {.name = "llama4",
     .family = "llama4",
     .score = "sigmoid_selected",
     .shared = SharedWide::routed,
     .weight_on_input = true,
     .step = true},
    {.name = "qwen2moe",
     .family = "qwen2_moe",
     .wide = Wide::expert_or_part,
     .shared = SharedWide::own_or_dense,
     .shared_gate = Has::yes},
    {.name = "qwen3moe", .family = "qwen3_moe", .renormalise = true, .wide = Wide::expert_or_part},
    {.name = "qwen3vlmoe", .family = "qwen3_moe", .renormalise = true, .wide = Wide::expert_or_part},
    {.name = "qwen3next",
     .family = "qwen3_next",
     .renormalise = true,
     .wide = Wide::expert_or_part,
     .shared = SharedWide::own_or_dense,
     .shared_gate = Has::yes},
    {.name = "qwen35moe",
     .family = "qwen3_5_moe",
     .renormalise = true,
     .wide = Wide::expert_or_part,
     .shared = SharedWide::own_or_dense,
     .shared_gate = Has::yes},
    {.name = "deepseek", .family = "deepseek", .shared = SharedWide::count_times_routed},
    {.name = "deepseek2",
     .family = "deepseek_v3",
     .score_by = By::key_or_this,
     .renormalise_by = By::key_or_this,
     .scale_key = true,
     .shared = SharedWide::count_times_routed,
     .selection_bias = Has::maybe},
    {.name = "deepseek32",
     .family = "deepseek_v32",
     .score_by = By::key,
     .renormalise_by = By::key_or_this,
     .scale_key = true,
     .shared = SharedWide::count_times_routed,
     .selection_bias = Has::maybe},
    {.name = "glm-dsa",
     .family = "glm_moe_dsa",
     .score_by = By::key_or_this,
     .score = "sigmoid",
     .renormalise_by = By::key_or_this,
     .scale_key = true,
     .shared = SharedWide::count_times_routed,
     .selection_bias = Has::maybe},
    {.name = "glm4moe",
     .family = "glm4_moe",
     .score_by = By::key_or_this,
     .score = "sigmoid",
     .renormalise_by = By::key_or_this,
     .scale_key = true,
     .wide = Wide::expert_or_part,
     .shared = SharedWide::count_times_routed,
     .selection_bias = Has::yes},
    {.name = "deepseek4",
     .family = "deepseek_v4",
     .score_by = By::key,
     .score = "sqrt_softplus",
     .renormalise_by = By::key,
     .scale_key = true,
     .shared = SharedWide::count_times_routed,
     .selection_bias = Has::yes,
     .clamp = Clamp::before,
     .hash_layers = true},
    {.name = "olmoe", .family = "olmoe", .wide = Wide::dense},
    {.name = "granitemoe",
     .family = "granitemoe",
     .renormalise = true,
     .wide = Wide::dense,
     .shared = SharedWide::own},
    {.name = "granitehybrid",
     .family = "granitemoehybrid",
     .renormalise = true,
     .wide = Wide::dense,
     .shared = SharedWide::own},
    {.name = "minimax-m2",
     .family = "minimax_m2",
     .score_by = By::key,
     .renormalise = true,
     .wide = Wide::expert_or_dense,
     .selection_bias = Has::yes},
    {.name = "ernie4_5-moe",
     .family = "ernie4_5_moe",
     .renormalise = true,
     .shared = SharedWide::own,
     .selection_bias = Has::maybe,
     .step = true},
    {.name = "bailingmoe2",
     .family = "bailing_moe_v2",
     .score_by = By::key,
     .renormalise_by = By::key_or_this,
     .scale_key = true,
     .shared = SharedWide::count_times_own,
     .selection_bias = Has::maybe},
    {.name = "dots1",
     .family = "dots1",
     .score_by = By::key,
     .renormalise_by = By::key_or_this,
     .scale_key = true,
     .shared = SharedWide::count_times_routed,
     .selection_bias = Has::maybe},
    {.name = "step35",
     .family = "step3p5",
     .score_by = By::key_or_this,
     .score = "sigmoid",
     .renormalise_by = By::key_or_this,
     .scale_key = true,
     .shared = SharedWide::own,
     .selection_bias = Has::maybe,
     .clamp = Clamp::after_silu,
     .layers_by_tensors = true},
};

struct NotRead {
  std::string_view name, why;
};

constexpr NotRead kNotRead[] = {
    {"arctic", "a dense layer runs beside the experts, with a norm of its own"},
    {"deepseek41", "its experts have not been looked up"},
    {"gemma4", "a dense layer runs beside the experts, and the router has norms and scales of its own"},
    {"grok", "its experts use GELU and its router caps the logits"},
    {"grovemoe", "it has experts of groups of experts"},
    {"kimi-k3", "projections around the experts and SiTU"},
    {"minimax-m3", "its limit is a constant in code, which no key says"},
    {"nemotron_h_moe", "its experts have no gate, and some sit between latent projections"},
    {"nomic-bert-moe", "its experts use GELU without a gate"},
    {"phimoe", "its router is a sparse mixer, which no key says"},
    {"smallthinker", "its router reads the layer's input and its experts use ReLU"},
};

}  // namespace

const Architecture kUnknownArchitecture{.name = "",
                                        .family = "gguf",
                                        .score_by = By::key,
                                        .renormalise_by = By::key,
                                        .scale_key = true,
                                        .wide = Wide::expert_or_dense,
                                        .shared = SharedWide::count_times_own,
                                        .shared_gate = Has::maybe,
                                        .selection_bias = Has::maybe,
                                        .biases = Has::maybe,
                                        .layers_by_tensors = true};

const Architecture* find_architecture(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kAll), std::end(kAll), [&](const auto& one) { return one.name == name; });
  return at == std::end(kAll) ? nullptr : at;
}

std::string_view why_not_read(std::string_view name) {
  for (const NotRead& one : kNotRead)
    if (one.name == name) return one.why;
  return {};
}

}  // namespace sluice::checkpoint
