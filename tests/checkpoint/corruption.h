// SPDX-License-Identifier: Apache-2.0
// The corruption table: one row a way in which a model directory can be wrong. Each is made from a fixture
// that opens, and must be refused with its own code and a message that says where, and with which numbers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "editable_model.h"
#include "sluice/error.h"

namespace sluice::testing {

/// What finds the corruption: opening the model, or taking the weights of its last layer.
enum class Step { open, weights };

struct Corruption {
  const char* name;
  const char* fixture;
  void (*corrupt)(EditableModel&);
  const char* code;
  std::vector<const char*> says;  // each must be in the message
  ErrorKind kind = ErrorKind::corrupt_file;
  Step step = Step::open;
};

inline constexpr const char* kGptOss = "gpt_oss_mxfp4";
inline constexpr const char* kBf16Stack = "gpt_oss_bf16";
inline constexpr const char* kV4 = "deepseek_v4_fp4";
inline constexpr const char* kV4Base = "deepseek_v4_base_fp8";
inline constexpr const char* kV4Nvfp4 = "deepseek_v4_nvfp4";
inline constexpr const char* kBlock = "qwen3_moe_fp8_block";
inline constexpr const char* kChannel = "qwen3_moe_fp8_channel";
inline constexpr const char* kNvfp4 = "qwen3_moe_ct_nvfp4";
inline constexpr const char* kMxfp4 = "qwen3_moe_ct_mxfp4";
inline constexpr const char* kMixtral = "mixtral_bf16";
inline constexpr const char* kAwq = "mixtral_awq";
inline constexpr const char* kGptq = "mixtral_gptq";
inline constexpr const char* kActOrder = "mixtral_gptq_act_order";
inline constexpr const char* kInt3 = "qwen3_moe_ct_int3";
inline constexpr const char* kInt4 = "qwen3_moe_ct_int4";
inline constexpr const char* kInt4Zeros = "qwen3_moe_ct_int4_asym";
inline constexpr const char* kInt8 = "qwen3_moe_ct_int8";

inline const std::string kFirstShard = "model-00001-of-00002.safetensors";

std::span<const Corruption> file_corruptions();           // files, links, the index
std::span<const Corruption> configuration_corruptions();  // config.json
std::span<const Corruption> tensor_corruptions();         // types, shapes, tensors missing and left over
std::span<const Corruption> value_corruptions();          // scales and tables
std::span<const Corruption> integer_corruptions();        // all of these, of integers

}  // namespace sluice::testing
