// SPDX-License-Identifier: Apache-2.0
// Corruptions of integer checkpoints: GPTQ, AWQ, AutoRound and compressed-tensors' pack-quantized.
#include "corruption.h"

namespace sluice::testing {
namespace {

const char kGptqModule[] = "model.layers.0.block_sparse_moe.experts.2.w2";
const char kPackedModule[] = "model.layers.0.mlp.experts.2.down_proj";

std::string gptq(const char* suffix) { return std::string(kGptqModule) + suffix; }
std::string packed(const char* suffix) { return std::string(kPackedModule) + suffix; }

/// Gives a tensor another shape, and as many bytes as that takes.
void reshape(EditableModel& m, const std::string& name, std::vector<std::int64_t> shape, std::int64_t bytes) {
  NamedTensor& tensor = m.tensor(name);
  for (const std::int64_t size : shape) bytes *= size;
  tensor.shape = std::move(shape);
  tensor.bytes.resize(static_cast<std::size_t>(bytes));
}

/// Makes the GPTQ fixture call itself AutoRound's.
void auto_round(EditableModel& m, const std::string& more) {
  m.in_config("\"quant_method\": \"gptq\"", "\"quant_method\": \"auto-round\"" + more);
}

// clang-format off
const Corruption kIntegers[] = {
    {"five_bits_of_gptq", kGptq, [](EditableModel& m) { m.in_config("\"bits\": 4", "\"bits\": 5"); },
     "unknown_quantisation", {"quantization_config.bits is 5", "2, 3, 4, 8"}},
    {"group_size_missing", kGptq, [](EditableModel& m) { m.in_config("group_size", "groups"); },
     "config_missing_key", {"no quantization_config.group_size"}},
    {"group_size_of_minus_two", kGptq,
     [](EditableModel& m) { m.in_config("\"group_size\": 64", "\"group_size\": -2"); },
     "config_out_of_range", {"group_size is -2"}},
    {"another_checkpoint_format", kGptq,
     [](EditableModel& m) { m.in_config("\"checkpoint_format\": \"gptq\"", "\"checkpoint_format\": \"marlin\""); },
     "unknown_quantisation", {"checkpoint_format is \"marlin\"", "gptq, gptq_v2"}},
    {"marlin_by_flag", kGptq,
     [](EditableModel& m) { m.in_config("\"sym\": true", "\"sym\": true, \"is_marlin_format\": true"); },
     "unknown_quantisation", {"is_marlin_format is true"}},
    {"words_of_16_bits", kGptq,
     [](EditableModel& m) { m.in_config("\"sym\": true", "\"sym\": true, \"pack_dtype\": \"int16\""); },
     "unknown_quantisation", {"pack_dtype is \"int16\""}},
    {"override_of_unknown_bits", kGptq,
     [](EditableModel& m) {
       m.in_config("\"sym\": true", "\"sym\": true, \"dynamic\": {\"+:.*experts.*\": {\"bits\": 6}}");
     },
     "unknown_quantisation", {"dynamic.+:.*experts.*.bits is 6"}},
    {"eight_bits_of_awq", kAwq, [](EditableModel& m) { m.in_config("\"bits\": 4", "\"bits\": 8"); },
     "unknown_quantisation", {"bits is 8", "known are: 4"}},
    {"awq_in_another_order", kAwq, [](EditableModel& m) { m.in_config("\"gemm\"", "\"gemv\""); },
     "unknown_quantisation", {"version is \"gemv\"", "gemm"}},
    {"awq_without_zero_points", kAwq,
     [](EditableModel& m) { m.in_config("\"zero_point\": true", "\"zero_point\": false"); },
     "unknown_quantisation", {"zero_point is false"}},
    {"auto_round_without_its_packing", kGptq, [](EditableModel& m) { auto_round(m, ""); },
     "config_missing_key", {"packing_format"}},
    {"another_packing_of_auto_round", kGptq,
     [](EditableModel& m) { auto_round(m, ", \"packing_format\": \"auto_round:exllama\""); },
     "unknown_quantisation", {"packing_format is \"auto_round:exllama\"", "auto_round:auto_gptq"}},
    {"floats_of_auto_round", kGptq,
     [](EditableModel& m) { auto_round(m, ", \"packing_format\": \"auto_round\", \"data_type\": \"mx_fp\""); },
     "unknown_quantisation", {"data_type is \"mx_fp\""}},
    {"nine_bits", kInt8, [](EditableModel& m) { m.in_config("\"num_bits\": 8", "\"num_bits\": 9"); },
     "unknown_quantisation", {"num_bits is 9", "2 to 8"}},
    {"integers_with_one_scale", kInt8, [](EditableModel& m) { m.in_config("\"group\"", "\"tensor\""); },
     "unknown_quantisation", {"strategy is \"tensor\"", "group, channel"}},
    {"another_order_of_columns", kInt8,
     [](EditableModel& m) { m.in_config("\"symmetric\"", "\"actorder\": \"random\", \"symmetric\""); },
     "unknown_quantisation", {"actorder is \"random\"", "group, dynamic, weight, static"}},

    {"rows_neither_dense_nor_padded", kInt3,
     [](EditableModel& m) { reshape(m, packed(".weight_packed"), {256, 14}, 4); },
     "wrong_shape", {kPackedModule, "[256, 14]", "[256, 12] or [256, 13]"}},
    {"words_without_a_sign", kInt4,
     [](EditableModel& m) { m.tensor(packed(".weight_packed")).dtype = DType::u32; },
     "wrong_dtype", {kPackedModule, "U32 [256, 16]", "I32"}},
    {"another_group_size_than_the_scales", kInt4,
     [](EditableModel& m) { m.in_config("\"group_size\": 32", "\"group_size\": 64"); },
     "wrong_shape", {"weight_scale", "[128, 8]", "[128, 4]"}},
    {"zero_points_missing", kInt4, [](EditableModel& m) { m.in_config("\"symmetric\": true", "\"symmetric\": false"); },
     "missing_tensor", {"up_proj.weight_zero_point", "weight_packed, weight_scale"}},
    {"zero_points_that_nothing_uses", kInt4Zeros,
     [](EditableModel& m) { m.in_config("\"symmetric\": false", "\"symmetric\": true"); },
     "unused_scale", {"weight_zero_point"}},
    {"zero_points_of_another_shape", kInt4Zeros,
     [](EditableModel& m) { reshape(m, packed(".weight_zero_point"), {256, 4}, 4); },
     "wrong_shape", {"down_proj.weight_zero_point", "[256, 4]", "[32, 4]"}},
    {"a_shape_that_contradicts", kInt4,
     [](EditableModel& m) { m.set<std::int64_t>(packed(".weight_shape"), 1, 256); },
     "wrong_packed_shape", {"down_proj.weight_shape", "256x256", "256x128"}},
    {"two_packings_as_wide", kInt4,
     [](EditableModel& m) {
       const std::string up = "model.layers.0.mlp.experts.0.up_proj";
       m.in_config("\"num_bits\": 4", "\"num_bits\": 5");
       m.in_config("\"hidden_size\": 256", "\"hidden_size\": 90");
       reshape(m, "model.layers.0.mlp.gate.weight", {4, 90}, 2);
       m.set<std::int64_t>(up + ".weight_shape", 1, 90);
       reshape(m, up + ".weight_packed", {128, 15}, 4);
     },
     "ambiguous_packing", {"up_proj.weight_packed", "90 integers of 5 bits", "15 words"}, ErrorKind::unsupported},
    {"order_of_columns_missing", kInt4,
     [](EditableModel& m) { m.in_config("\"symmetric\"", "\"actorder\": \"group\", \"symmetric\""); },
     "missing_tensor", {"weight_g_idx"}},
    {"width_that_fills_no_words", kGptq,
     [](EditableModel& m) {
       m.in_config("\"hidden_size\": 256", "\"hidden_size\": 260");
       reshape(m, "model.layers.0.block_sparse_moe.gate.weight", {4, 260}, 2);
     },
     "packing_does_not_divide", {"260 integers of 4 bits", "experts.0.w3"}},
    {"gptq_of_another_shape", kGptq, [](EditableModel& m) { reshape(m, gptq(".qweight"), {256, 16}, 4); },
     "wrong_shape", {kGptqModule, "[256, 16]", "[16, 256]"}},
    {"gptq_scales_of_another_shape", kGptq, [](EditableModel& m) { reshape(m, gptq(".scales"), {256, 2}, 2); },
     "wrong_shape", {"experts.2.w2.scales", "[256, 2]", "[2, 256]"}},
    {"gptq_zero_points_missing", kGptq, [](EditableModel& m) { m.remove(gptq(".qzeros")); },
     "missing_tensor", {"experts.2.w2.qzeros"}},
    {"gptq_order_missing", kActOrder, [](EditableModel& m) { m.remove(gptq(".g_idx")); },
     "missing_tensor", {"experts.2.w2.g_idx"}},
    {"gptq_order_of_another_size", kActOrder, [](EditableModel& m) { reshape(m, gptq(".g_idx"), {256}, 4); },
     "wrong_shape", {"experts.2.w2.g_idx", "[256]", "[128]"}},
    {"awq_of_another_shape", kAwq, [](EditableModel& m) { reshape(m, gptq(".qweight"), {16, 256}, 4); },
     "wrong_shape", {kGptqModule, "[16, 256]", "[128, 32]"}},
    {"awq_zero_points_of_another_shape", kAwq, [](EditableModel& m) { reshape(m, gptq(".qzeros"), {2, 256}, 4); },
     "wrong_shape", {"experts.2.w2.qzeros", "[2, 256]", "[2, 32]"}},

    {"gptq_scale_zero", kGptq, [](EditableModel& m) { m.set<std::uint16_t>(gptq(".scales"), 5, 0); },
     "scale_zero", {"experts.2.w2.scales", "scale 5 of 512"}, ErrorKind::corrupt_file, Step::weights},
    {"gptq_scale_nan", kGptq, [](EditableModel& m) { m.set<std::uint16_t>(gptq(".scales"), 5, 0x7E00); },
     "scale_nan", {"experts.2.w2.scales", "NaN"}, ErrorKind::corrupt_file, Step::weights},
    {"awq_scale_infinite", kAwq, [](EditableModel& m) { m.set<std::uint16_t>(gptq(".scales"), 511, 0xFC00); },
     "scale_infinite", {"experts.2.w2.scales", "scale 511 of 512 is -inf"}, ErrorKind::corrupt_file, Step::weights},
    {"packed_scale_zero", kInt3, [](EditableModel& m) { m.set<std::uint16_t>(packed(".weight_scale"), 7, 0x8000); },
     "scale_zero", {"down_proj.weight_scale", "scale 7 of 1024"}, ErrorKind::corrupt_file, Step::weights},
    {"column_beyond_the_groups", kActOrder,
     [](EditableModel& m) { m.set<std::int32_t>(gptq(".g_idx"), 17, 2); },
     "bad_column_group", {"experts.2.w2.g_idx", "column 17 is in group 2, there are 2"},
     ErrorKind::corrupt_file, Step::weights},
    {"column_before_the_groups", kActOrder,
     [](EditableModel& m) { m.set<std::int32_t>(gptq(".g_idx"), 127, -1); },
     "bad_column_group", {"column 127 is in group -1"}, ErrorKind::corrupt_file, Step::weights},
    {"order_that_nothing_declares", kActOrder,
     [](EditableModel& m) { m.in_config("\"desc_act\": true", "\"desc_act\": false"); },
     "column_order_not_declared", {"g_idx", "by its place it is in", "desc_act"}, ErrorKind::corrupt_file,
     Step::weights},
    {"zero_points_of_another_version", kGptq,
     [](EditableModel& m) { m.in_config("\"checkpoint_format\": \"gptq\"", "\"checkpoint_format\": \"gptq_v2\""); },
     "zero_point_not_symmetric", {"row 0, group 0 is 7", "it is 8", "checkpoint_format"}, ErrorKind::corrupt_file,
     Step::weights},
    {"a_zero_point_that_is_not_symmetric", kGptq,
     [](EditableModel& m) { m.set<std::uint32_t>(gptq(".qzeros"), 33, 0x77777577); },
     "zero_point_not_symmetric", {"experts.2.w2.qzeros", "row 10, group 1 is 6"}, ErrorKind::corrupt_file, Step::weights},
};
// clang-format on

}  // namespace

std::span<const Corruption> integer_corruptions() { return kIntegers; }

}  // namespace sluice::testing
