// SPDX-License-Identifier: Apache-2.0
// Each family is a function that adds one layer's tensors and one that writes its configuration, as the
// public checkpoints spell them.
#include "testing/sample_flavours.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "format/formats.h"
#include "testing/sample_blocks.h"

namespace sluice::testing::sample {

namespace {

using Json = nlohmann::ordered_json;

double spread(double pre_activation, std::int64_t inputs) {
  return pre_activation / std::sqrt(static_cast<double>(inputs));
}

/// Expert matrices of one gpt-oss tensor, one after the other. Gate and up rows alternate.
void add_gpt_oss_mxfp4(Shard& shard, const std::string& name, const Shape& s, const Drawn& sizes,
                       double deviation) {
  std::vector<std::byte> blocks, scales;
  for (int e = 0; e < s.experts; ++e) {
    const format::Encoded one = encoded("mxfp4", draw_matrix(shard, sizes.rows, sizes.cols, deviation));
    blocks.insert(blocks.end(), one.codes.begin(), one.codes.end());
    scales.insert(scales.end(), one.scales.begin(), one.scales.end());
  }
  const std::int64_t groups = sizes.cols / 32;
  shard.add(name + "_blocks", DType::u8, {s.experts, sizes.rows, groups, 16}, std::move(blocks));
  shard.add(name + "_scales", DType::u8, {s.experts, sizes.rows, groups}, std::move(scales));
}

void add_gpt_oss_common(Shard& shard, const Flavour& flavour, const std::string& prefix) {
  const Shape& s = flavour.shape;
  add_bf16(shard, prefix + "router.weight", draw_matrix(shard, s.experts, s.hidden, spread(2, s.hidden)));
  add_drawn_bf16(shard, prefix + "router.bias", {s.experts}, 0.5);
  add_drawn_bf16(shard, prefix + "experts.gate_up_proj_bias", {s.experts, 2 * s.intermediate}, 1.0);
  add_drawn_bf16(shard, prefix + "experts.down_proj_bias", {s.experts, s.hidden}, 0.5);
}

void add_gpt_oss_layer(Shard& shard, const Flavour& flavour, int layer) {
  const Shape& s = flavour.shape;
  const std::string prefix = fmt::format("model.layers.{}.mlp.", layer);
  add_gpt_oss_common(shard, flavour, prefix);
  add_gpt_oss_mxfp4(shard, prefix + "experts.gate_up_proj", s, {2 * s.intermediate, s.hidden},
                    spread(6, s.hidden));
  add_gpt_oss_mxfp4(shard, prefix + "experts.down_proj", s, {s.hidden, s.intermediate},
                    spread(0.25, s.intermediate));
}

/// The BF16 layout stores [experts, in, out], with gate and up columns alternating.
void add_gpt_oss_bf16_layer(Shard& shard, const Flavour& flavour, int layer) {
  const Shape& s = flavour.shape;
  const std::string prefix = fmt::format("model.layers.{}.mlp.", layer);
  add_gpt_oss_common(shard, flavour, prefix);
  add_drawn_bf16(shard, prefix + "experts.gate_up_proj", {s.experts, s.hidden, 2 * s.intermediate},
                 spread(6, s.hidden));
  add_drawn_bf16(shard, prefix + "experts.down_proj", {s.experts, s.intermediate, s.hidden},
                 spread(0.25, s.intermediate));
}

Json gpt_oss_config(const Flavour& flavour) {
  const Shape& s = flavour.shape;
  Json config{{"architectures", {"GptOssForCausalLM"}},
              {"model_type", "gpt_oss"},
              {"hidden_size", s.hidden},
              {"intermediate_size", s.intermediate},
              {"num_local_experts", s.experts},
              {"num_experts_per_tok", s.top_k},
              {"num_hidden_layers", s.layers},
              {"swiglu_limit", 7.0},
              {"hidden_act", "silu"},
              {"vocab_size", s.vocabulary}};
  if (flavour.name == "gpt-oss") config["quantization_config"] = {{"quant_method", "mxfp4"}};
  return config;
}

/// Layer 0 chooses experts by token id, the others by score with a selection bias.
void add_deepseek_routing(Shard& shard, const Shape& s, const std::string& prefix, int layer) {
  add_bf16(shard, prefix + "gate.weight", draw_matrix(shard, s.experts, s.hidden, spread(2, s.hidden)));
  if (layer > 0) {
    shard.add(prefix + "gate.bias", DType::f32, {s.experts},
              bytes_of(std::span<const float>(shard.draw.normals(s.experts, 0.3))));
    return;
  }
  std::vector<std::int64_t> table;
  for (int token = 0; token < s.vocabulary; ++token) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(s.experts));
    std::iota(ids.begin(), ids.end(), std::int64_t{0});
    for (int j = 0; j < s.top_k; ++j) {
      std::swap(ids[static_cast<std::size_t>(j)],
                ids[static_cast<std::size_t>(j + shard.draw.below(s.experts - j))]);
      table.push_back(ids[static_cast<std::size_t>(j)]);
    }
  }
  shard.add(prefix + "gate.tid2eid", DType::i64, {s.vocabulary, s.top_k},
            bytes_of(std::span<const std::int64_t>(table)));
}

void add_deepseek_expert(Shard& shard, const Shape& s, const std::string& name, AddMatrix add) {
  add(shard, name + ".w1", draw_matrix(shard, s.intermediate, s.hidden, spread(9, s.hidden)));
  add(shard, name + ".w3", draw_matrix(shard, s.intermediate, s.hidden, spread(12, s.hidden)));
  add(shard, name + ".w2", draw_matrix(shard, s.hidden, s.intermediate, spread(0.125, s.intermediate)));
}

void add_deepseek_layer(Shard& shard, const Flavour& flavour, int layer) {
  const Shape& s = flavour.shape;
  const std::string prefix = fmt::format("layers.{}.ffn.", layer);
  add_deepseek_routing(shard, s, prefix, layer);
  for (int e = 0; e < s.experts; ++e)
    add_deepseek_expert(shard, s, fmt::format("{}experts.{}", prefix, e), flavour.add_matrix);
  add_deepseek_expert(shard, s, prefix + "shared_experts", flavour.add_shared);
}

Json deepseek_config(const Flavour& flavour) {
  const Shape& s = flavour.shape;
  const bool base = flavour.name == "deepseek-v4-base";
  Json scheme{{"quant_method", "fp8"},
              {"fmt", "e4m3"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", {128, 128}}};
  if (!base) scheme["scale_fmt"] = "ue8m0";
  if (flavour.name == "deepseek-v4-nvfp4") scheme["moe_quant_algo"] = "NVFP4";
  return {{"architectures", {"DeepseekV4ForCausalLM"}},
          {"model_type", "deepseek_v4"},
          {"hidden_size", s.hidden},
          {"moe_intermediate_size", s.intermediate},
          {"n_routed_experts", s.experts},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", s.top_k},
          {"num_hidden_layers", s.layers},
          {"num_hash_layers", 1},
          {"scoring_func", "sqrtsoftplus"},
          {"topk_method", "noaux_tc"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 1.5},
          {"swiglu_limit", 10.0},
          {"hidden_act", "silu"},
          {"vocab_size", s.vocabulary},
          {"expert_dtype", base ? "fp8" : "fp4"},
          {"quantization_config", scheme}};
}

/// Mixtral and Qwen3-MoE: the same block under other names.
struct PlainNames {
  const char* block;
  const char* gate;
  const char* up;
  const char* down;
};

void add_plain_layer(Shard& shard, const Flavour& flavour, const PlainNames& names, int layer) {
  const Shape& s = flavour.shape;
  const std::string prefix = fmt::format("model.layers.{}.{}.", layer, names.block);
  add_bf16(shard, prefix + "gate.weight", draw_matrix(shard, s.experts, s.hidden, spread(2, s.hidden)));
  for (int e = 0; e < s.experts; ++e) {
    const std::string name = fmt::format("{}experts.{}.", prefix, e);
    flavour.add_matrix(shard, name + names.gate,
                       draw_matrix(shard, s.intermediate, s.hidden, spread(2, s.hidden)));
    flavour.add_matrix(shard, name + names.up,
                       draw_matrix(shard, s.intermediate, s.hidden, spread(2, s.hidden)));
    flavour.add_matrix(shard, name + names.down,
                       draw_matrix(shard, s.hidden, s.intermediate, spread(1, s.intermediate)));
  }
}

/// What qwen3-moe-ignored leaves as it was: an expert of one layer by the names of its matrices, of the other
/// by an expression; one matrix of an expert by its name; experts of one layer by an expression. The name of
/// an expert alone would mean nothing: compressed-tensors does not look at parents.
constexpr const char* kIgnored[] = {
    "model.layers.0.mlp.experts.1.gate_proj", "model.layers.0.mlp.experts.1.up_proj",
    "model.layers.0.mlp.experts.1.down_proj", "re:model[.]layers[.]1[.]mlp[.]experts[.]1[.][a-z]{2,4}_proj$",
    "model.layers.0.mlp.experts.5.down_proj", "re:model[.]layers[.]1[.]mlp[.]experts[.][67][.].*"};

bool is_ignored(const std::string& name) {
  const auto below = [&](std::string_view module) { return name.starts_with(module); };
  return below("model.layers.0.mlp.experts.1.") || below("model.layers.1.mlp.experts.1.") ||
         name == "model.layers.0.mlp.experts.5.down_proj" || below("model.layers.1.mlp.experts.6.") ||
         below("model.layers.1.mlp.experts.7.");
}

void add_mxfp4_unless_ignored(Shard& shard, const std::string& name, const Drawn& values) {
  (is_ignored(name) ? add_plain_weight : add_compressed_mxfp4)(shard, name, values);
}

void add_mixtral_layer(Shard& shard, const Flavour& flavour, int layer) {
  add_plain_layer(shard, flavour, {"block_sparse_moe", "w1", "w3", "w2"}, layer);
}

void add_qwen3_layer(Shard& shard, const Flavour& flavour, int layer) {
  add_plain_layer(shard, flavour, {"mlp", "gate_proj", "up_proj", "down_proj"}, layer);
}

Json mixtral_scheme(std::string_view flavour) {
  if (flavour == "mixtral-gptq")
    return {{"quant_method", "gptq"}, {"bits", 4},   {"group_size", 32},
            {"desc_act", true},       {"sym", true}, {"checkpoint_format", "gptq"}};
  return {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"zero_point", true}, {"version", "gemm"}};
}

Json mixtral_config(const Flavour& flavour) {
  const Shape& s = flavour.shape;
  Json config{{"architectures", {"MixtralForCausalLM"}},
              {"model_type", "mixtral"},
              {"hidden_size", s.hidden},
              {"intermediate_size", s.intermediate},
              {"num_local_experts", s.experts},
              {"num_experts_per_tok", s.top_k},
              {"num_hidden_layers", s.layers},
              {"hidden_act", "silu"},
              {"vocab_size", s.vocabulary}};
  if (flavour.name != "mixtral") config["quantization_config"] = mixtral_scheme(flavour.name);
  return config;
}

Json compressed_tensors_config(const Json& weights, const char* format) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"ignore", {"lm_head", "re:.*gate$"}},
          {"config_groups",
           {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}}}}}};
}

Json qwen3_scheme(std::string_view flavour) {
  Json weights{{"num_bits", 4}, {"type", "float"}, {"symmetric", true}, {"dynamic", false}};
  if (flavour == "qwen3-moe-fp8")
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}}};
  if (flavour == "qwen3-moe-nvfp4") {
    weights.update({{"strategy", "tensor_group"}, {"group_size", 16}});
    return compressed_tensors_config(weights, "nvfp4-pack-quantized");
  }
  if (flavour == "qwen3-moe-int3") {
    weights.update({{"num_bits", 3}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}});
    return compressed_tensors_config(weights, "pack-quantized");
  }
  weights.update({{"strategy", "group"}, {"group_size", 32}, {"scale_dtype", "torch.uint8"}});
  Json scheme = compressed_tensors_config(weights, "mxfp4-pack-quantized");
  if (flavour == "qwen3-moe-ignored")
    for (const char* module : kIgnored) scheme["ignore"].push_back(module);
  return scheme;
}

Json qwen3_config(const Flavour& flavour) {
  const Shape& s = flavour.shape;
  Json config{{"architectures", {"Qwen3MoeForCausalLM"}},
              {"model_type", "qwen3_moe"},
              {"hidden_size", s.hidden},
              {"moe_intermediate_size", s.intermediate},
              {"num_experts", s.experts},
              {"num_experts_per_tok", s.top_k},
              {"norm_topk_prob", true},
              {"num_hidden_layers", s.layers},
              {"hidden_act", "silu"},
              {"decoder_sparse_step", 1},
              {"mlp_only_layers", Json::array()},
              {"vocab_size", s.vocabulary}};
  if (flavour.name != "qwen3-moe") config["quantization_config"] = qwen3_scheme(flavour.name);
  return config;
}

constexpr Shape kDeepseek{.hidden = 256, .intermediate = 96, .experts = 8, .top_k = 3, .layers = 3};

constexpr Flavour kFlavours[] = {
    {.name = "gpt-oss",
     .shape = {},
     .add_matrix = nullptr,
     .add_layer = add_gpt_oss_layer,
     .config = gpt_oss_config},
    {.name = "gpt-oss-bf16",
     .shape = {},
     .add_matrix = nullptr,
     .add_layer = add_gpt_oss_bf16_layer,
     .config = gpt_oss_config},
    {.name = "deepseek-v4",
     .shape = kDeepseek,
     .add_matrix = add_deepseek_fp4,
     .add_shared = add_deepseek_fp8_e8m0,
     .add_layer = add_deepseek_layer,
     .config = deepseek_config,
     .file_each_layer = true},
    {.name = "deepseek-v4-nvfp4",
     .shape = kDeepseek,
     .add_matrix = add_modelopt_nvfp4,
     .add_shared = add_deepseek_fp8_e8m0,
     .add_layer = add_deepseek_layer,
     .config = deepseek_config,
     .file_each_layer = true},
    {.name = "deepseek-v4-base",
     .shape = kDeepseek,
     .add_matrix = add_deepseek_fp8,
     .add_shared = add_deepseek_fp8,
     .add_layer = add_deepseek_layer,
     .config = deepseek_config,
     .file_each_layer = true},
    {.name = "mixtral",
     .shape = {},
     .add_matrix = add_plain_weight,
     .add_layer = add_mixtral_layer,
     .config = mixtral_config},
    {.name = "mixtral-gptq",
     .shape = {},
     .add_matrix = add_gptq,
     .add_layer = add_mixtral_layer,
     .config = mixtral_config},
    {.name = "mixtral-awq",
     .shape = {},
     .add_matrix = add_awq,
     .add_layer = add_mixtral_layer,
     .config = mixtral_config},
    {.name = "qwen3-moe",
     .shape = {},
     .add_matrix = add_plain_weight,
     .add_layer = add_qwen3_layer,
     .config = qwen3_config},
    {.name = "qwen3-moe-fp8",
     .shape = {},
     .add_matrix = add_hugging_face_fp8,
     .add_layer = add_qwen3_layer,
     .config = qwen3_config,
     .file_each_layer = true},
    {.name = "qwen3-moe-nvfp4",
     .shape = {},
     .add_matrix = add_compressed_nvfp4,
     .add_layer = add_qwen3_layer,
     .config = qwen3_config},
    {.name = "qwen3-moe-mxfp4",
     .shape = {},
     .add_matrix = add_compressed_mxfp4,
     .add_layer = add_qwen3_layer,
     .config = qwen3_config},
    {.name = "qwen3-moe-ignored",
     .shape = {},
     .add_matrix = add_mxfp4_unless_ignored,
     .add_layer = add_qwen3_layer,
     .config = qwen3_config},
    {.name = "qwen3-moe-int3",
     .shape = {},
     .add_matrix = add_packed_int3,
     .add_layer = add_qwen3_layer,
     .config = qwen3_config},
};

}  // namespace

std::span<const Flavour> flavours() {
  static const std::vector<Flavour> kAll = [] {
    std::vector<Flavour> all(std::begin(kFlavours), std::end(kFlavours));
    const auto blocks = block_flavours();
    all.insert(all.end(), blocks.begin(), blocks.end());
    return all;
  }();
  return kAll;
}

}  // namespace sluice::testing::sample
