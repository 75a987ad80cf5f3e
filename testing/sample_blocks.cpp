// SPDX-License-Identifier: Apache-2.0
// The families as data, and the writer that they share. A configuration has the keys of the published one
// that say something about experts, and small sizes: hidden 128, intermediate 96, 8 experts.
#include "testing/sample_blocks.h"

#include <fmt/format.h>

#include <cmath>

#include "format/bf16.h"

namespace sluice::testing::sample {
namespace {

using Json = nlohmann::ordered_json;

const Block& block_of(const Flavour& flavour) { return *static_cast<const Block*>(flavour.description); }

double spread(double pre_activation, std::int64_t inputs) {
  return pre_activation / std::sqrt(static_cast<double>(inputs));
}

/// Numbers around one, as norms and scales have them.
void add_near_one(Shard& shard, const std::string& name, std::int64_t size) {
  Drawn drawn{1, size, shard.draw.normals(size, 0.2)};
  for (float& value : drawn.values) value = 1 + std::abs(value);
  std::vector<std::uint16_t> halves;
  for (const float value : drawn.values) halves.push_back(format::float_to_bf16(value));
  shard.add(name, DType::bf16, {size}, bytes_of(std::span<const std::uint16_t>(halves)));
}

void add_router(Shard& shard, const Block& block, const Shape& s, const std::string& layer) {
  add_bf16(shard, layer + block.router, draw_matrix(shard, s.experts, s.hidden, spread(2, s.hidden)));
  if (block.bias != nullptr) {
    const std::vector<float> bias = shard.draw.normals(s.experts, 0.3);
    shard.add(
        layer + block.bias, DType::f32,
        block.bias_is_a_row ? std::vector<std::int64_t>{1, s.experts} : std::vector<std::int64_t>{s.experts},
        bytes_of(std::span<const float>(bias)));
  }
  if (block.router_scale != nullptr) add_near_one(shard, layer + block.router_scale, s.hidden);
  if (block.expert_scale != nullptr) add_near_one(shard, layer + block.expert_scale, s.experts);
  if (block.norm != nullptr) add_near_one(shard, layer + block.norm, s.hidden);
}

void add_modules(Shard& shard, const Flavour& flavour, const std::string& layer) {
  const Block& block = block_of(flavour);
  const Shape& s = flavour.shape;
  const int hidden = s.expert_hidden();
  for (int e = 0; e < s.experts; ++e) {
    const std::string name = layer + fmt::format(fmt::runtime(block.experts), e);
    const double deviation = spread(block.pre_activation, hidden);
    if (block.gate != nullptr)
      flavour.add_matrix(shard, name + block.gate, draw_matrix(shard, s.intermediate, hidden, deviation));
    flavour.add_matrix(shard, name + block.up, draw_matrix(shard, s.intermediate, hidden, deviation));
    flavour.add_matrix(shard, name + block.down,
                       draw_matrix(shard, hidden, s.intermediate, spread(1, s.intermediate)));
  }
}

void add_stacks(Shard& shard, const Flavour& flavour, const std::string& layer) {
  const Block& block = block_of(flavour);
  const Shape& s = flavour.shape;
  const auto add = [&](const char* name, std::int64_t rows, std::int64_t cols, double deviation) {
    const bool turned = block.stored == Stored::transposed;
    add_drawn_bf16(shard, layer + block.experts + name + block.suffix,
                   {s.experts, turned ? cols : rows, turned ? rows : cols}, deviation);
  };
  const double in = spread(block.pre_activation, s.hidden);
  if (block.stored == Stored::stacks) {
    add(block.gate, s.intermediate, s.hidden, in);
    add(block.up, s.intermediate, s.hidden, in);
  } else {
    add(block.up, 2 * s.intermediate, s.hidden, in);
  }
  add(block.down, s.hidden, s.intermediate, spread(1, s.intermediate));
}

void add_shared(Shard& shard, const Flavour& flavour, const std::string& layer) {
  const Block& block = block_of(flavour);
  const int hidden = flavour.shape.hidden, width = block.shared_width;
  const AddMatrix add = flavour.add_shared != nullptr ? flavour.add_shared : flavour.add_matrix;
  const std::string name = layer + block.shared;
  const double in = spread(block.pre_activation, hidden);
  const bool fused = block.shared_gate == nullptr && block.gate == nullptr && block.stored != Stored::modules;
  if (block.shared_gate != nullptr)
    add(shard, name + block.shared_gate, draw_matrix(shard, width, hidden, in));
  add(shard, name + block.shared_up, draw_matrix(shard, fused ? 2 * width : width, hidden, in));
  add(shard, name + block.shared_down, draw_matrix(shard, hidden, width, spread(1, width)));
  if (block.sigmoid_gate != nullptr)
    add_drawn_bf16(shard, layer + block.sigmoid_gate, {1, hidden}, spread(1, hidden));
}

void add_latent(Shard& shard, const Flavour& flavour, const std::string& layer) {
  const Block& block = block_of(flavour);
  const int hidden = flavour.shape.hidden, latent = flavour.shape.latent;
  flavour.add_latent(shard, layer + block.latent_in, draw_matrix(shard, latent, hidden, spread(1, hidden)));
  flavour.add_latent(shard, layer + block.latent_out, draw_matrix(shard, hidden, latent, spread(1, latent)));
  if (block.latent_norm != nullptr) add_near_one(shard, layer + block.latent_norm, latent);
}

void add_layer(Shard& shard, const Flavour& flavour, int number) {
  const Block& block = block_of(flavour);
  const std::string layer = fmt::format(fmt::runtime(block.layer), number);
  add_router(shard, block, flavour.shape, layer);
  if (block.stored == Stored::modules)
    add_modules(shard, flavour, layer);
  else
    add_stacks(shard, flavour, layer);
  if (block.shared != nullptr) add_shared(shard, flavour, layer);
  if (block.latent_in != nullptr) add_latent(shard, flavour, layer);
}

Json config_of(const Flavour& flavour) { return Json::parse(block_of(flavour).config); }

constexpr Block kDeepseekV2{.bias = nullptr, .shared_width = 192, .config = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_act": "silu",
  "hidden_size": 128, "moe_intermediate_size": 96, "n_routed_experts": 8, "n_shared_experts": 2,
  "num_experts_per_tok": 3, "num_hidden_layers": 3, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "scoring_func": "softmax", "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
  "norm_topk_prob": false, "routed_scaling_factor": 16.0, "vocab_size": 64})"};

constexpr Block kDeepseekV3{.config = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu",
  "hidden_size": 128, "moe_intermediate_size": 96, "n_routed_experts": 8, "n_shared_experts": 1,
  "num_experts_per_tok": 3, "num_hidden_layers": 3, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 4, "topk_group": 2, "norm_topk_prob": true,
  "routed_scaling_factor": 2.5, "vocab_size": 64, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
  "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})"};

constexpr Block kKimiK2{.layer = "language_model.model.layers.{}.mlp.", .config = R"({
  "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": {
  "model_type": "kimi_k2", "hidden_act": "silu", "hidden_size": 128, "moe_intermediate_size": 96,
  "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "num_hidden_layers": 3,
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
  "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.827, "vocab_size": 64}})"};

constexpr Block kGlm45{.config = R"({
  "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_act": "silu", "hidden_size": 128,
  "moe_intermediate_size": 96, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
  "num_hidden_layers": 3, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
  "routed_scaling_factor": 2.5, "vocab_size": 64})"};

constexpr Block kGlm53{.layer = "model.language_model.layers.{}.mlp.", .pre_activation = 9, .config = R"({
  "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "text_config": {
  "model_type": "glm5_next_text", "hidden_act": "silu", "swiglu_limit": 10.0, "hidden_size": 128,
  "moe_intermediate_size": 96, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
  "num_hidden_layers": 3, "first_k_dense_replace": 1, "mlp_layer_types": ["dense", "sparse", "sparse"],
  "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
  "routed_scaling_factor": 2.5, "vocab_size": 64}})"};

constexpr Block kQwen2{.bias = nullptr,
                       .shared = "shared_expert.",
                       .shared_width = 160,
                       .sigmoid_gate = "shared_expert_gate.weight",
                       .config = R"({
  "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_act": "silu", "hidden_size": 128,
  "moe_intermediate_size": 96, "shared_expert_intermediate_size": 160, "num_experts": 8,
  "num_experts_per_tok": 3, "num_hidden_layers": 2, "decoder_sparse_step": 1, "norm_topk_prob": false,
  "vocab_size": 64})"};

constexpr Block kQwen3Next{
    .bias = nullptr, .shared = "shared_expert.", .sigmoid_gate = "shared_expert_gate.weight", .config = R"({
  "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_act": "silu", "hidden_size": 128,
  "moe_intermediate_size": 96, "shared_expert_intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 3,
  "num_hidden_layers": 2, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true,
  "vocab_size": 64})"};

constexpr Block kQwen35{.layer = "model.language_model.layers.{}.mlp.",
                        .bias = nullptr,
                        .experts = "experts.",
                        .stored = Stored::fused,
                        .up = "gate_up_proj",
                        .shared = "shared_expert.",
                        .sigmoid_gate = "shared_expert_gate.weight",
                        .suffix = "",
                        .config = R"({
  "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": {
  "model_type": "qwen3_5_moe_text", "hidden_act": "silu", "hidden_size": 128, "moe_intermediate_size": 96,
  "shared_expert_intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 2,
  "vocab_size": 64}})"};

constexpr Block kOlmoe{.bias = nullptr, .shared = nullptr, .config = R"({
  "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_act": "silu", "hidden_size": 128,
  "intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 2, "clip_qkv": 8.0,
  "norm_topk_prob": false, "vocab_size": 64})"};

constexpr Block kGranite{.layer = "model.layers.{}.",
                         .router = "block_sparse_moe.router.layer.weight",
                         .bias = nullptr,
                         .experts = "block_sparse_moe.",
                         .stored = Stored::fused,
                         .gate = nullptr,
                         .up = "input_linear",
                         .down = "output_linear",
                         .shared = "shared_mlp.",
                         .shared_width = 160,
                         .shared_gate = nullptr,
                         .shared_up = "input_linear",
                         .shared_down = "output_linear",
                         .config = R"({
  "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_act": "silu",
  "hidden_size": 128, "intermediate_size": 96, "shared_intermediate_size": 160, "num_local_experts": 8,
  "num_experts_per_tok": 3, "num_hidden_layers": 2, "residual_multiplier": 0.22, "vocab_size": 64})"};

constexpr Block kMinimaxM2{.layer = "model.layers.{}.block_sparse_moe.",
                           .bias = "e_score_correction_bias",
                           .gate = "w1",
                           .up = "w3",
                           .down = "w2",
                           .shared = nullptr,
                           .config = R"({
  "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_act": "silu", "hidden_size": 128,
  "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 2,
  "scoring_func": "sigmoid", "use_routing_bias": true, "vocab_size": 64, "quantization_config": {
  "quant_method": "fp8", "fmt": "float8_e4m3fn", "activation_scheme": "dynamic",
  "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}})"};

constexpr Block kMinimaxM3{.layer = "language_model.model.layers.{}.block_sparse_moe.",
                           .bias = "e_score_correction_bias",
                           .gate = "w1",
                           .up = "w3",
                           .down = "w2",
                           .pre_activation = 6,
                           .config = R"({
  "architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl", "text_config": {
  "model_type": "minimax_m3", "hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
  "hidden_size": 128, "intermediate_size": 96, "dense_intermediate_size": 192, "shared_intermediate_size": 96,
  "n_shared_experts": 1, "num_local_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 3,
  "moe_layer_freq": [0, 1, 1], "scoring_func": "sigmoid", "use_routing_bias": true, "routed_scaling_factor": 2.0,
  "vocab_size": 64}, "quantization_config": {"quant_method": "mxfp8", "activation_scheme": "dynamic",
  "weight_block_size": [1, 32], "ignored_layers": ["lm_head",
  "language_model.model.layers.1.block_sparse_moe.gate", "language_model.model.layers.2.block_sparse_moe.gate"]}})"};

constexpr Block kStep35{.layer = "model.layers.{}.",
                        .router = "moe.gate.weight",
                        .bias = "moe.router_bias",
                        .experts = "moe.",
                        .stored = Stored::stacks,
                        .shared = "share_expert.",
                        .pre_activation = 6,
                        .config = R"({
  "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "hidden_act": "silu", "hidden_size": 128,
  "moe_intermediate_size": 96, "share_expert_dim": 96, "moe_num_experts": 8, "moe_top_k": 3,
  "num_hidden_layers": 4, "moe_layers_enum": "1,2,3", "swiglu_limits": [0, 0, 0, 7, 7],
  "swiglu_limits_shared": [0, 0, 16, 0, 16], "moe_router_activation": "sigmoid", "use_moe_router_bias": true,
  "moe_router_scaling_factor": 3.0, "norm_expert_weight": true, "need_fp32_gate": true, "vocab_size": 64})"};

constexpr Block kLing3{.bias = "gate.expert_bias", .pre_activation = 6, .config = R"({
  "architectures": ["BailingMoeV3ForCausalLM"], "model_type": "bailing_moe_v3", "hidden_act": "silu",
  "hidden_size": 128, "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 96, "num_experts": 8,
  "num_shared_experts": 1, "num_experts_per_tok": 3, "num_hidden_layers": 4, "first_k_dense_replace": 1,
  "expert_swiglu_limit_list": [0, 0, 0, 4], "share_expert_swiglu_limit_list": [0, 0, 5, 7], "n_group": 4,
  "topk_group": 2, "score_function": "sigmoid", "moe_router_enable_expert_bias": true,
  "routed_scaling_factor": 2.5, "vocab_size": 64})"};

constexpr Block kExaone2{.pre_activation = 6, .config = R"({
  "architectures": ["ExaoneMoeForCausalLM"], "model_type": "exaone_moe", "hidden_act": "silu", "hidden_size": 128,
  "moe_intermediate_size": 96, "num_experts": 8, "num_shared_experts": 1, "num_experts_per_tok": 3,
  "num_hidden_layers": 3, "is_moe_layer": [false, true, true], "swiglu_limits": [0, null, 7.0], "n_group": 1,
  "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "vocab_size": 64})"};

constexpr Block kErnie{
    .bias = "moe_statics.e_score_correction_bias", .bias_is_a_row = true, .shared_width = 192, .config = R"({
  "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_act": "silu",
  "hidden_size": 128, "intermediate_size": 384, "moe_intermediate_size": 96, "moe_num_experts": 8, "moe_k": 3,
  "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 2, "moe_layer_interval": 1,
  "moe_use_aux_free": true, "num_hidden_layers": 3, "vocab_size": 64})"};

constexpr Block kLlama4{.layer = "language_model.model.layers.{}.feed_forward.",
                        .router = "router.weight",
                        .bias = nullptr,
                        .experts = "experts.",
                        .stored = Stored::transposed,
                        .up = "gate_up_proj",
                        .shared = "shared_expert.",
                        .suffix = "",
                        .config = R"({
  "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": {
  "model_type": "llama4_text", "hidden_act": "silu", "hidden_size": 128, "intermediate_size": 96,
  "intermediate_size_mlp": 192, "num_local_experts": 8, "num_experts_per_tok": 1, "num_hidden_layers": 2,
  "interleave_moe_layer_step": 1, "vocab_size": 64}})"};

constexpr Block kNemotron3{.layer = "backbone.layers.{}.mixer.",
                           .gate = nullptr,
                           .shared_width = 192,
                           .shared_gate = nullptr,
                           .config = R"({
  "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "mlp_hidden_act": "relu2",
  "hidden_size": 128, "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 192,
  "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "num_hidden_layers": 4,
  "hybrid_override_pattern": "M*EE", "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
  "routed_scaling_factor": 2.5, "moe_latent_size": null, "vocab_size": 64})"};

/// As published: NVFP4 experts, the projection before them in FP8 in some layers, everything else BF16.
constexpr Block kNemotron3Super{.layer = "backbone.layers.{}.mixer.",
                                .gate = nullptr,
                                .shared_width = 192,
                                .shared_gate = nullptr,
                                .latent_in = "fc1_latent_proj",
                                .latent_out = "fc2_latent_proj",
                                .config = R"({
  "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "mlp_hidden_act": "relu2",
  "hidden_size": 128, "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 192,
  "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "num_hidden_layers": 4,
  "hybrid_override_pattern": "M*EE", "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
  "routed_scaling_factor": 5.0, "moe_latent_size": 64, "vocab_size": 64, "quantization_config": {
  "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
  "backbone.layers.2.mixer.experts": {"quant_algo": "NVFP4", "group_size": 16},
  "backbone.layers.3.mixer.experts": {"quant_algo": "NVFP4", "group_size": 16},
  "backbone.layers.2.mixer.fc1_latent_proj": {"quant_algo": "FP8"}}}})"};

bool is_fp8_in_nemotron(const std::string& module) {
  return module == "backbone.layers.2.mixer.fc1_latent_proj";
}

void add_nemotron_latent(Shard& shard, const std::string& name, const Drawn& values) {
  (is_fp8_in_nemotron(name) ? add_modelopt_fp8 : add_plain_weight)(shard, name, values);
}

/// As published: MXFP4 experts, and a list of what is not converted that says nothing of the projections.
constexpr Block kKimiK3{.layer = "language_model.model.layers.{}.block_sparse_moe.",
                        .gate = "w1",
                        .up = "w3",
                        .down = "w2",
                        .shared_width = 192,
                        .latent_in = "routed_expert_down_proj",
                        .latent_out = "routed_expert_up_proj",
                        .latent_norm = "routed_expert_norm.weight",
                        .pre_activation = 6,
                        .config = R"({
  "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "text_config": {
  "model_type": "kimi_linear", "hidden_act": "situ", "activation_situ_beta": 4.0,
  "activation_situ_linear_beta": 25.0, "hidden_size": 128, "moe_intermediate_size": 96, "num_experts": 8,
  "num_experts_per_token": 3, "num_shared_experts": 2, "num_hidden_layers": 3, "first_k_dense_replace": 1,
  "moe_router_activation_func": "sigmoid", "moe_renormalize": true, "routed_scaling_factor": 1.0,
  "num_expert_group": 1, "topk_group": 1, "routed_expert_hidden_size": 64, "latent_moe_use_norm": true,
  "rms_norm_eps": 1e-05, "vocab_size": 64, "quantization_config": {"quant_method": "compressed-tensors",
  "format": "mxfp4-pack-quantized", "quantization_status": "compressed",
  "ignore": ["lm_head", "re:.*gate$", "re:.*shared_experts.*"], "config_groups": {"group_0": {
  "targets": ["Linear"], "input_activations": null, "weights": {"num_bits": 4, "type": "float",
  "symmetric": true, "dynamic": false, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}}}}}})"};

constexpr Block kGemma4{.layer = "model.language_model.layers.{}.",
                        .router = "router.proj.weight",
                        .bias = nullptr,
                        .experts = "experts.",
                        .stored = Stored::fused,
                        .gate = nullptr,
                        .up = "gate_up_proj",
                        .shared = nullptr,
                        .suffix = "",
                        .router_scale = "router.scale",
                        .expert_scale = "router.per_expert_scale",
                        .norm = "pre_feedforward_layernorm_2.weight",
                        .config = R"({
  "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": {
  "model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh", "enable_moe_block": true,
  "hidden_size": 128, "intermediate_size": 192, "moe_intermediate_size": 96, "num_experts": 8,
  "top_k_experts": 3, "num_hidden_layers": 2, "vocab_size": 64}})"};

constexpr Block kKimiLinear{.layer = "model.layers.{}.block_sparse_moe.",
                            .gate = "w1",
                            .up = "w3",
                            .down = "w2",
                            .pre_activation = 6,
                            .config = R"({
  "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_act": "situ",
  "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "hidden_size": 128,
  "moe_intermediate_size": 96, "num_experts": 8, "num_experts_per_token": 3, "num_shared_experts": 1,
  "num_hidden_layers": 3, "first_k_dense_replace": 1, "moe_router_activation_func": "sigmoid",
  "moe_renormalize": true, "routed_scaling_factor": 1.0, "num_expert_group": 1, "topk_group": 1,
  "vocab_size": 64})"};

struct Named {
  std::string_view name;
  const Block& block;
  int layers = 2, first = 0;  // layers before `first` have no experts
  AddMatrix add_matrix = add_plain_weight;
  AddMatrix add_shared = nullptr, add_latent = add_plain_weight;
  int latent = 0;
};

Flavour flavour_of(const Named& named) {
  Shape shape{.top_k = 3, .layers = named.layers, .first = named.first, .latent = named.latent};
  return {.name = named.name,
          .shape = shape,
          .add_matrix = named.add_matrix,
          .add_shared = named.add_shared,
          .add_latent = named.add_latent,
          .add_layer = add_layer,
          .config = config_of,
          .description = &named.block};
}

}  // namespace

std::span<const Flavour> block_flavours() {
  static const std::vector<Flavour> kFlavours{
      flavour_of({"deepseek-v2", kDeepseekV2, 3, 1}),
      flavour_of({"deepseek-v3", kDeepseekV3, 3, 1, add_hugging_face_fp8}),
      flavour_of({"kimi-k2", kKimiK2, 3, 1}),
      flavour_of({"glm-4.5", kGlm45, 3, 1}),
      flavour_of({"glm-5.3-flash", kGlm53, 3, 1}),
      flavour_of({"qwen2-moe", kQwen2}),
      flavour_of({"qwen3-next", kQwen3Next}),
      flavour_of({"qwen3.5-moe", kQwen35}),
      flavour_of({"olmoe", kOlmoe}),
      flavour_of({"granite-moe", kGranite}),
      flavour_of({"minimax-m2", kMinimaxM2, 2, 0, add_hugging_face_fp8}),
      flavour_of({"minimax-m3", kMinimaxM3, 3, 1, add_minimax_mxfp8}),
      flavour_of({"step-3.5", kStep35, 4, 1}),
      flavour_of({"ling-3.0", kLing3, 4, 1}),
      flavour_of({"k-exaone-2", kExaone2, 3, 1}),
      flavour_of({"ernie-4.5", kErnie, 3, 1}),
      flavour_of({"llama-4", kLlama4}),
      flavour_of({"nemotron-3", kNemotron3, 4, 2}),
      flavour_of({"gemma-4", kGemma4}),
      flavour_of({"kimi-linear-situ", kKimiLinear, 3, 1}),
      flavour_of({.name = "nemotron-3-super",
                  .block = kNemotron3Super,
                  .layers = 4,
                  .first = 2,
                  .add_matrix = add_modelopt_nvfp4,
                  .add_shared = add_plain_weight,
                  .add_latent = add_nemotron_latent,
                  .latent = 64}),
      flavour_of({.name = "kimi-k3",
                  .block = kKimiK3,
                  .layers = 3,
                  .first = 1,
                  .add_matrix = add_compressed_mxfp4,
                  .add_shared = add_plain_weight,
                  .latent = 64}),
  };
  return kFlavours;
}

}  // namespace sluice::testing::sample
