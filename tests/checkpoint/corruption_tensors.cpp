// SPDX-License-Identifier: Apache-2.0
// Corruptions of tensors that the headers show, and of values that only the data show.
#include <limits>

#include "corruption.h"

namespace sluice::testing {
namespace {

constexpr std::uint16_t kBf16One = 0x3F80, kBf16Nan = 0x7FC0;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();

const char kV4Scale[] = "layers.2.ffn.experts.3.w2.scale";
const char kV4SharedScale[] = "layers.2.ffn.shared_experts.w1.scale";
const char kBlockScale[] = "model.layers.1.mlp.experts.2.gate_proj.weight_scale_inv";
const char kChannelScale[] = "model.layers.0.mlp.experts.2.up_proj.weight_scale";
const char kNvfp4Scale[] = "model.layers.0.mlp.experts.2.down_proj.weight_scale";
const char kGlobalScale[] = "model.layers.0.mlp.experts.2.down_proj.weight_global_scale";

// clang-format off
const Corruption kTensors[] = {
    {"expert_missing_from_the_middle", kMixtral,
     [](EditableModel& m) { m.remove_below("model.layers.0.block_sparse_moe.experts.2."); },
     "missing_expert", {"expert 2 of 4", "layer 0", "experts.2."}},
    {"more_experts_than_configured", kMxfp4,
     [](EditableModel& m) {
       m.in_config("\"num_experts\": 4", "\"num_experts\": 3");
       m.tensor("model.layers.0.mlp.gate.weight").shape = {3, 256};
       m.tensor("model.layers.0.mlp.gate.weight").bytes.resize(3 * 256 * 2);
     },
     "unused_tensor", {"experts.3.down_proj.weight_packed", "U8 [256, 64]"}},
    {"matrix_missing", kMixtral,
     [](EditableModel& m) { m.remove("model.layers.0.block_sparse_moe.experts.1.w3.weight"); },
     "missing_tensor", {"experts.1.w3.weight"}},
    {"scale_missing", kBlock,
     [](EditableModel& m) {
       m.files.erase("model-00002-of-00002.safetensors");
       m.index.clear();
       m.files["model.safetensors"] = std::move(m.files[kFirstShard]);
       m.files.erase(kFirstShard);
       m.in_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
       m.remove("model.layers.0.mlp.experts.3.up_proj.weight_scale_inv");
     },
     "missing_tensor", {"experts.3.up_proj.weight_scale_inv", "beside it are weight"}},
    {"second_scale_missing", kNvfp4,
     [](EditableModel& m) { m.remove("model.layers.0.mlp.experts.0.up_proj.weight_global_scale"); },
     "missing_tensor", {"experts.0.up_proj.weight_global_scale"}},
    {"router_missing", kMxfp4, [](EditableModel& m) { m.remove("model.layers.0.mlp.gate.weight"); },
     "missing_tensor", {"model.layers.0.mlp.gate.weight"}},
    {"layers_missing", kMxfp4,
     [](EditableModel& m) { m.in_config("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2"); },
     "missing_tensor", {"model.layers.1.mlp.gate.weight"}},
    {"bias_missing", kGptOss, [](EditableModel& m) { m.remove("model.layers.1.mlp.experts.down_proj_bias"); },
     "missing_tensor", {"model.layers.1.mlp.experts.down_proj_bias"}},
    {"wrong_type_of_codes", kChannel,
     [](EditableModel& m) { m.tensor("model.layers.0.mlp.experts.0.up_proj.weight").dtype = DType::f8_e5m2; },
     "wrong_dtype", {"experts.0.up_proj.weight", "F8_E5M2 [128, 256]", "F8_E4M3"}},
    {"wrong_type_of_scales", kNvfp4,
     [](EditableModel& m) {
       m.tensor("model.layers.0.mlp.experts.0.up_proj.weight_scale").dtype = DType::u8;
     },
     "wrong_dtype", {"weight_scale", "U8 [128, 16]", "F8_E4M3"}},
    {"wrong_type_of_a_plain_matrix", kMixtral,
     [](EditableModel& m) {
       m.tensor("model.layers.0.block_sparse_moe.experts.0.w1.weight").dtype = DType::i16;
     },
     "wrong_dtype", {"I16 [128, 256]", "BF16, F16 or F32"}},
    {"wrong_shape", kMixtral,
     [](EditableModel& m) {
       m.tensor("model.layers.0.block_sparse_moe.experts.0.w1.weight").shape = {256, 128};
     },
     "wrong_shape", {"experts.0.w1.weight", "BF16 [256, 128]", "[128, 256]"}},
    {"wrong_rank", kMixtral,
     [](EditableModel& m) {
       m.tensor("model.layers.0.block_sparse_moe.experts.0.w1.weight").shape = {32768};
     },
     "wrong_shape", {"[32768]", "[128, 256]"}},
    {"wrong_shape_of_scales", kBlock,
     [](EditableModel& m) {
       m.tensor("model.layers.1.mlp.experts.0.down_proj.weight_scale_inv").shape = {1, 2};
     },
     "wrong_shape", {"layers.1.mlp.experts.0.down_proj.weight_scale_inv", "[1, 2]", "[2, 1]"}},
    {"wrong_shape_of_blocks", kGptOss,
     [](EditableModel& m) {
       m.tensor("model.layers.0.mlp.experts.down_proj_blocks").shape = {8, 288, 16, 9};
     },
     "wrong_shape", {"[8, 288, 16, 9]", "[8, 288, 9, 16]"}},
    {"wrong_shape_of_a_bias", kBf16Stack,
     [](EditableModel& m) { m.tensor("model.layers.0.mlp.experts.gate_up_proj_bias").shape = {8, 96}; },
     "wrong_shape", {"[8, 96]", "[4, 192]"}},
    {"wrong_hidden_size", kMxfp4,
     [](EditableModel& m) { m.in_config("\"hidden_size\": 256", "\"hidden_size\": 512"); },
     "wrong_shape", {"gate.weight", "[4, 256]", "[4, 512]"}},
    {"width_that_no_group_divides", kMxfp4,
     [](EditableModel& m) {
       m.in_config("\"hidden_size\": 256", "\"hidden_size\": 260");
       m.tensor("model.layers.0.mlp.gate.weight").shape = {4, 260};
       m.tensor("model.layers.0.mlp.gate.weight").bytes.resize(4 * 260 * 2);
     },
     "group_does_not_divide", {"260 columns", "32", "mxfp4"}},
    {"unused_scale", kMixtral,
     [](EditableModel& m) {
       m.add({"model.layers.0.block_sparse_moe.experts.0.w1.weight_scale",
              DType::bf16,
              {1},
              std::vector<std::byte>(2)});
     },
     "unused_scale", {"experts.0.w1.weight_scale", "BF16 [1]"}},
    {"unused_zero_point", kNvfp4,
     [](EditableModel& m) {
       m.add({"model.layers.0.mlp.experts.0.up_proj.weight_zero_point",
              DType::u8,
              {2},
              std::vector<std::byte>(2)});
     },
     "unused_scale", {"weight_zero_point", "U8 [2]"}},
    {"unused_pre_quant_scale", kV4Nvfp4,
     [](EditableModel& m) {
       m.index.clear();
       for (auto* shard : {"model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"})
         m.files.erase(shard);
       m.files["model.safetensors"] = std::move(m.files["model-00001-of-00003.safetensors"]);
       m.files.erase("model-00001-of-00003.safetensors");
       m.in_config("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1");
       m.add({"layers.0.ffn.experts.0.w1.pre_quant_scale", DType::f16, {3}, std::vector<std::byte>(6)});
     },
     "unused_scale", {"pre_quant_scale", "F16 [3]"}},
    {"unused_bias", kMixtral,
     [](EditableModel& m) {
       m.add(
           {"model.layers.0.block_sparse_moe.experts.0.w1.bias", DType::f32, {1}, std::vector<std::byte>(4)});
     },
     "unused_tensor", {"experts.0.w1.bias", "F32 [1]"}},
    {"quantised_but_not_said_so", kMxfp4,
     [](EditableModel& m) { m.in_config("quantization_config", "quantization"); },
     "missing_tensor", {"experts.0.up_proj.weight", "beside it are weight_packed"}},
    {"one_expert_missing_in_the_ignore_list", kMxfp4,
     [](EditableModel& m) {
       m.in_config("\"lm_head\"", "\"re:model.layers.0.mlp.experts.0.*\"");
       for (const std::string expert : {"0", "1"})
         for (const std::string matrix : {"gate_proj", "up_proj", "down_proj"}) {
           const std::string module = "model.layers.0.mlp.experts." + expert + "." + matrix;
           const auto shape = m.tensor(module + ".weight_packed").shape;
           m.remove_below(module);
           m.add({module + ".weight",
                  DType::bf16,
                  {shape[0], shape[1] * 2},
                  std::vector<std::byte>(static_cast<std::size_t>(shape[0] * shape[1] * 4))});
         }
     },
     "missing_tensor", {"experts.1.up_proj.weight_packed"}},
    {"scheme_of_stacks_for_separate_experts", kMxfp4,
     [](EditableModel& m) { m.in_config("\"compressed-tensors\"", "\"mxfp4\""); },
     "scheme_needs_stacks", {"mxfp4", "experts.0.up_proj"}, ErrorKind::unsupported},
    {"scheme_of_separate_experts_for_stacks", kGptOss,
     [](EditableModel& m) { m.in_config("\"mxfp4\"", "\"fp8\""); },
     "scheme_has_no_stacks", {"fp8", "experts.gate_up_proj"}, ErrorKind::unsupported},
};
const Corruption kValues[] = {
    {"block_scale_zero", kBlock, [](EditableModel& m) { m.set<float>(kBlockScale, 1, 0.0f); },
     "scale_zero", {kBlockScale, "scale 1 of 2", "model-00002"}, ErrorKind::corrupt_file, Step::weights},
    {"block_scale_minus_zero", kBlock, [](EditableModel& m) { m.set<float>(kBlockScale, 0, -0.0f); },
     "scale_zero", {"scale 0 of 2 is zero"}, ErrorKind::corrupt_file, Step::weights},
    {"block_scale_nan", kBlock, [](EditableModel& m) { m.set<float>(kBlockScale, 1, kNan); },
     "scale_nan", {kBlockScale, "NaN"}, ErrorKind::corrupt_file, Step::weights},
    {"block_scale_negative", kBlock, [](EditableModel& m) { m.set<float>(kBlockScale, 1, -0.5f); },
     "scale_negative", {kBlockScale, "-0.5"}, ErrorKind::corrupt_file, Step::weights},
    {"block_scale_infinite", kBlock, [](EditableModel& m) { m.set<float>(kBlockScale, 1, kInfinity); },
     "scale_infinite", {kBlockScale, "inf"}, ErrorKind::corrupt_file, Step::weights},
    {"channel_scale_in_bf16_nan", kChannel,
     [](EditableModel& m) {
       auto& tensor = m.tensor(kChannelScale);
       tensor.dtype = DType::bf16;
       tensor.bytes.resize(256);
       for (std::size_t i = 0; i < 128; ++i)
         m.set<std::uint16_t>(kChannelScale, i, i == 127 ? kBf16Nan : kBf16One);
     },
     "scale_nan", {kChannelScale, "scale 127 of 128"}, ErrorKind::corrupt_file, Step::weights},
    {"e8m0_scale_255", kV4, [](EditableModel& m) { m.set<std::uint8_t>(kV4Scale, 17, 255); },
     "scale_e8m0_nan", {kV4Scale, "scale 17 of 1024", "255"}, ErrorKind::corrupt_file, Step::weights},
    {"e8m0_scale_255_as_u8", kMxfp4,
     [](EditableModel& m) {
       m.set<std::uint8_t>("model.layers.0.mlp.experts.3.up_proj.weight_scale", 1023, 255);
     },
     "scale_e8m0_nan", {"experts.3.up_proj.weight_scale", "scale 1023 of 1024"}, ErrorKind::corrupt_file, Step::weights},
    {"e8m0_scale_255_in_a_stack", kGptOss,
     [](EditableModel& m) { m.set<std::uint8_t>("model.layers.1.mlp.experts.down_proj_scales", 20735, 255); },
     "scale_e8m0_nan", {"down_proj_scales", "scale 20735 of 20736"}, ErrorKind::corrupt_file, Step::weights},
    {"shared_scale_255", kV4, [](EditableModel& m) { m.set<std::uint8_t>(kV4SharedScale, 1, 255); },
     "scale_e8m0_nan", {kV4SharedScale, "scale 1 of 2"}, ErrorKind::corrupt_file, Step::weights},
    {"e4m3_scale_zero", kNvfp4, [](EditableModel& m) { m.set<std::uint8_t>(kNvfp4Scale, 5, 0); },
     "scale_zero", {kNvfp4Scale, "scale 5 of 2048"}, ErrorKind::corrupt_file, Step::weights},
    {"e4m3_scale_nan", kNvfp4, [](EditableModel& m) { m.set<std::uint8_t>(kNvfp4Scale, 5, 0x7F); },
     "scale_nan", {"scale 5 of 2048 is NaN"}, ErrorKind::corrupt_file, Step::weights},
    {"e4m3_scale_negative", kNvfp4, [](EditableModel& m) { m.set<std::uint8_t>(kNvfp4Scale, 5, 0xB8); },
     "scale_negative", {"scale 5 of 2048 is -1"}, ErrorKind::corrupt_file, Step::weights},
    {"second_scale_zero", kNvfp4, [](EditableModel& m) { m.set<float>(kGlobalScale, 0, 0.0f); },
     "scale_zero", {kGlobalScale, "scale 0 of 1"}},
    {"second_scale_nan", kNvfp4, [](EditableModel& m) { m.set<float>(kGlobalScale, 0, kNan); },
     "scale_nan", {kGlobalScale}},
    {"second_scale_infinite", kNvfp4, [](EditableModel& m) { m.set<float>(kGlobalScale, 0, kInfinity); },
     "scale_infinite", {kGlobalScale}},
    {"second_scale_whose_reciprocal_overflows", kNvfp4,
     [](EditableModel& m) { m.set<float>(kGlobalScale, 0, 1e-40f); },
     "scale_infinite", {kGlobalScale, "reciprocal"}},
    {"second_scale_negative", kV4Nvfp4,
     [](EditableModel& m) { m.set<float>("layers.1.ffn.experts.7.w3.weight_scale_2", 0, -1.0f); },
     "scale_negative", {"layers.1.ffn.experts.7.w3.weight_scale_2", "-1"}},
    {"table_names_no_expert", kV4Base,
     [](EditableModel& m) {
       m.in_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
       m.set<std::int64_t>("layers.0.ffn.gate.tid2eid", 7, 6);
     },
     "bad_expert_id", {"token 2", "expert 6", "there are 6"}, ErrorKind::corrupt_file, Step::weights},
    {"table_names_a_negative_expert", kV4Base,
     [](EditableModel& m) {
       m.in_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
       m.set<std::int64_t>("layers.0.ffn.gate.tid2eid", 95, -1);
     },
     "bad_expert_id", {"token 31", "expert -1"}, ErrorKind::corrupt_file, Step::weights},
};
// clang-format on

}  // namespace

std::span<const Corruption> tensor_corruptions() { return kTensors; }
std::span<const Corruption> value_corruptions() { return kValues; }

}  // namespace sluice::testing
