// SPDX-License-Identifier: Apache-2.0
// The fixtures and the trained model: what a checkpoint means, against what their makers say. No line of
// Sluice wrote the files, and the values were decoded by numpy and ml_dtypes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "format/geometry.h"
#include "format/scales.h"
#include "sluice/checkpoint.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr float kNone = std::numeric_limits<float>::infinity();

std::string directory_of(const std::string& name) {
  const std::string root = SLUICE_SOURCE_DIR;
  return name.starts_with("tiny") ? root + "/models/" + name : root + "/tests/data/fixtures/" + name;
}

/// What a layer of a fixture is.
struct Expected {
  const char* name;
  int layer;
  int layers, hidden, intermediate, experts, top_k;
  const char* format;
  const char* score;
  ActivationParams params;
  bool biases = false, selection_bias = false, by_token_id = false, renormalise = false;
  float scale = 1;
  const char* shared_format = nullptr;
  Grouping grouping = {};
};

const Expected kExpected[] = {
    {.name = "gpt_oss_mxfp4",
     .layer = 1,
     .layers = 2,
     .hidden = 288,
     .intermediate = 288,
     .experts = 8,
     .top_k = 4,
     .format = "mxfp4",
     .score = "softmax_selected",
     .params = {7, 1.702f, 1},
     .biases = true},
    {.name = "gpt_oss_bf16",
     .layer = 0,
     .layers = 2,
     .hidden = 64,
     .intermediate = 96,
     .experts = 4,
     .top_k = 2,
     .format = "bf16",
     .score = "softmax_selected",
     .params = {7, 1.702f, 1},
     .biases = true},
    {.name = "tiny-gpt-oss-mxfp4",
     .layer = 3,
     .layers = 4,
     .hidden = 256,
     .intermediate = 256,
     .experts = 16,
     .top_k = 4,
     .format = "mxfp4",
     .score = "softmax_selected",
     .params = {7, 1.702f, 1},
     .biases = true},
    {.name = "deepseek_v4_fp4",
     .layer = 0,
     .layers = 3,
     .hidden = 256,
     .intermediate = 128,
     .experts = 8,
     .top_k = 3,
     .format = "mxfp4",
     .score = "sqrt_softplus",
     .params = {10, 1, 0},
     .by_token_id = true,
     .renormalise = true,
     .scale = 1.5f,
     .shared_format = "fp8_block128"},
    {.name = "deepseek_v4_fp4",
     .layer = 2,
     .layers = 3,
     .hidden = 256,
     .intermediate = 128,
     .experts = 8,
     .top_k = 3,
     .format = "mxfp4",
     .score = "sqrt_softplus",
     .params = {10, 1, 0},
     .selection_bias = true,
     .renormalise = true,
     .scale = 1.5f,
     .shared_format = "fp8_block128"},
    {.name = "deepseek_v4_base_fp8",
     .layer = 1,
     .layers = 2,
     .hidden = 256,
     .intermediate = 192,
     .experts = 6,
     .top_k = 3,
     .format = "fp8_block128",
     .score = "sqrt_softplus",
     .params = {10, 1, 0},
     .selection_bias = true,
     .renormalise = true,
     .scale = 1.5f,
     .shared_format = "fp8_block128"},
    {.name = "deepseek_v4_nvfp4",
     .layer = 1,
     .layers = 3,
     .hidden = 256,
     .intermediate = 128,
     .experts = 8,
     .top_k = 3,
     .format = "nvfp4",
     .score = "sqrt_softplus",
     .params = {10, 1, 0},
     .selection_bias = true,
     .renormalise = true,
     .scale = 1.5f,
     .shared_format = "fp8_block128"},
    {.name = "qwen3_moe_fp8_block",
     .layer = 1,
     .layers = 2,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "fp8_block128",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true},
    {.name = "qwen3_moe_fp8_channel",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "fp8_channel",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true},
    {.name = "qwen3_moe_ct_nvfp4",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "nvfp4",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true},
    {.name = "qwen3_moe_ct_mxfp4",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "mxfp4",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true},
    {.name = "mixtral_bf16",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "bf16",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true},
    {.name = "mixtral_awq",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "int4",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true,
     .grouping = {.columns = 64, .zero_points = true}},
    {.name = "mixtral_gptq",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "int4",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true,
     .grouping = {.columns = 64}},
    {.name = "mixtral_gptq_act_order",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "int4",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true,
     .grouping = {.columns = 64, .act_order = true}},
    {.name = "qwen3_moe_ct_int3",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "int3",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true,
     .grouping = {.columns = 32}},
    {.name = "qwen3_moe_ct_int4",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "int4",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true,
     .grouping = {.columns = 32}},
    {.name = "qwen3_moe_ct_int4_asym",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "int4",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true,
     .grouping = {.columns = 32, .zero_points = true}},
    {.name = "qwen3_moe_ct_int8",
     .layer = 0,
     .layers = 1,
     .hidden = 256,
     .intermediate = 128,
     .experts = 4,
     .top_k = 2,
     .format = "int8",
     .score = "softmax",
     .params = {kNone, 1, 0},
     .renormalise = true,
     .grouping = {.columns = 32}},
};

class Fixtures : public ::testing::TestWithParam<Expected> {};

void expect_router(const RouterSpec& router, const Expected& want) {
  EXPECT_EQ(router.score.str(), want.score);
  EXPECT_EQ(router.experts, want.experts);
  EXPECT_EQ(router.top_k, want.top_k);
  EXPECT_EQ(router.groups, 1);
  EXPECT_EQ(router.bias, want.biases);
  EXPECT_EQ(router.selection_bias, want.selection_bias);
  EXPECT_EQ(router.by_token_id, want.by_token_id);
  EXPECT_EQ(router.renormalise, want.renormalise);
  EXPECT_EQ(router.scale, want.scale);
}

TEST_P(Fixtures, SpecIsWhatTheMakerWrote) {
  const Expected& want = GetParam();
  const Checkpoint model = Checkpoint::open(directory_of(want.name));
  EXPECT_EQ(model.info().layers, want.layers);
  EXPECT_EQ(model.info().moe_layers.size(), static_cast<std::size_t>(want.layers));
  const LayerSpec spec = model.spec(want.layer);
  EXPECT_EQ(spec.routed.hidden, want.hidden);
  EXPECT_EQ(spec.routed.intermediate, want.intermediate);
  EXPECT_EQ(spec.routed.experts, want.experts);
  EXPECT_EQ(spec.routed.local_experts, want.experts);
  EXPECT_EQ(spec.routed.top_k, want.top_k);
  EXPECT_EQ(spec.routed.activation.str(), "silu");
  EXPECT_EQ(spec.routed.params, want.params);
  EXPECT_EQ(spec.routed.gate_up_bias, want.biases);
  EXPECT_EQ(spec.routed.down_bias, want.biases);
  ASSERT_TRUE(spec.routed.formats.gate.has_value());
  EXPECT_EQ(spec.routed.formats.gate->str(), want.format);
  EXPECT_EQ(spec.routed.formats.up.str(), want.format);
  EXPECT_EQ(spec.routed.formats.down.str(), want.format);
  EXPECT_EQ(spec.routed.formats.gate_grouping, want.grouping);
  EXPECT_EQ(spec.routed.formats.up_grouping, want.grouping);
  EXPECT_EQ(spec.routed.formats.down_grouping, want.grouping);
  expect_router(spec.router, want);
  ASSERT_EQ(spec.shared.has_value(), want.shared_format != nullptr);
  if (!spec.shared) return;
  EXPECT_EQ(spec.shared->experts.formats.down.str(), want.shared_format);
  EXPECT_EQ(spec.shared->experts.params, want.params) << "the shared expert is clamped, too";
  EXPECT_EQ(spec.shared->experts.intermediate, want.intermediate);
}

TEST_P(Fixtures, WeightsFitTheSpec) {
  const Expected& want = GetParam();
  const Checkpoint model = Checkpoint::open(directory_of(want.name));
  const LayerSpec spec = model.spec(want.layer);
  const LayerWeights weights = model.weights(want.layer);
  EXPECT_NO_THROW(validate(spec, weights));
  EXPECT_NE(weights.owner, nullptr);
  EXPECT_GT(model.layer_bytes(want.layer), experts_bytes(spec.routed, spec.routed.experts));
}

INSTANTIATE_TEST_SUITE_P(All, Fixtures, ::testing::ValuesIn(kExpected), [](const auto& of) {
  std::string name = std::string(of.param.name) + "_layer_" + std::to_string(of.param.layer);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

enum class Which { gate, up, down };

/// Four elements of one row. Expert -1 is the shared one.
struct Decoded {
  const char* name;
  int layer, expert;
  Which which;
  int row;
  int columns[4];
  float values[4];
};

const Decoded kDecoded[] = {
    // clang-format off
    {"deepseek_v4_base_fp8", 1, 5, Which::gate, 191, {5, 169, 204, 255}, {-0.197754409f, -0.31076318f, 0.213649686f, 0.621526361f}},
    {"deepseek_v4_base_fp8", 1, 5, Which::up, 54, {13, 70, 98, 255}, {0.00070369993f, -0.165134917f, 0.00609873273f, 0.0893699145f}},
    {"deepseek_v4_base_fp8", 1, 1, Which::down, 11, {0, 9, 28, 191}, {-0.0030895698f, 0.0197732467f, 0.00231717735f, 0.0295277601f}},
    {"deepseek_v4_base_fp8", 1, -1, Which::down, 60, {50, 53, 82, 187}, {0.00735066639f, -0.00801890879f, 0.0160378176f, 0.0133483177f}},
    {"deepseek_v4_fp4", 2, 7, Which::gate, 127, {30, 103, 163, 255}, {-0.125f, 0.5f, -1.0f, -0.375f}},
    {"deepseek_v4_fp4", 2, 7, Which::up, 84, {14, 143, 231, 255}, {0.09375f, -0.25f, -0.1875f, 0.0625f}},
    {"deepseek_v4_fp4", 2, 1, Which::down, 47, {8, 15, 44, 127}, {-0.015625f, -0.005859375f, 0.0234375f, 0.0078125f}},
    {"deepseek_v4_fp4", 2, -1, Which::down, 139, {39, 110, 111, 125}, {0.00244140625f, 0.00732421875f, -0.009765625f, 0.00439453125f}},
    {"deepseek_v4_nvfp4", 2, 7, Which::gate, 127, {0, 9, 125, 255}, {-0.299560737f, 0.599121474f, 0.374450921f, -0.166422632f}},
    {"deepseek_v4_nvfp4", 2, 7, Which::up, 25, {76, 83, 133, 255}, {0.0622925078f, -0.0467193809f, 0.480542203f, -0.347058258f}},
    {"deepseek_v4_nvfp4", 2, 1, Which::down, 38, {34, 57, 73, 127}, {0.00571902296f, 0.00330432437f, 0.00660864875f, 0.00127089399f}},
    {"deepseek_v4_nvfp4", 2, -1, Which::down, 60, {7, 18, 40, 102}, {-0.000732421875f, -0.0087890625f, 0.00341796875f, 0.000610351562f}},
    {"gpt_oss_bf16", 1, 3, Which::gate, 95, {14, 30, 49, 63}, {-0.147460938f, -1.109375f, -0.8359375f, -0.44921875f}},
    {"gpt_oss_bf16", 1, 3, Which::up, 82, {5, 29, 52, 63}, {0.212890625f, -0.71875f, 0.62109375f, -0.110351562f}},
    {"gpt_oss_bf16", 1, 1, Which::down, 42, {19, 25, 37, 95}, {-0.0172119141f, -0.0284423828f, 0.0245361328f, 0.00897216797f}},
    {"gpt_oss_mxfp4", 1, 7, Which::gate, 287, {58, 90, 193, 287}, {0.5f, 0.25f, -0.125f, 0.0625f}},
    {"gpt_oss_mxfp4", 1, 7, Which::up, 133, {64, 103, 184, 287}, {-0.375f, -0.5f, -0.25f, -0.25f}},
    {"gpt_oss_mxfp4", 1, 1, Which::down, 198, {113, 185, 238, 287}, {0.00390625f, 0.0234375f, -0.015625f, -0.00390625f}},
    {"mixtral_bf16", 0, 3, Which::gate, 127, {40, 48, 49, 255}, {0.00823974609f, -0.1328125f, -0.3359375f, 0.3046875f}},
    {"mixtral_bf16", 0, 3, Which::up, 3, {27, 43, 156, 255}, {-0.0307617188f, -0.0170898438f, 0.0230712891f, -0.00168609619f}},
    {"mixtral_bf16", 0, 1, Which::down, 157, {14, 47, 90, 127}, {0.0581054688f, 0.116699219f, 0.0194091797f, -0.0727539062f}},
    {"qwen3_moe_ct_mxfp4", 0, 3, Which::gate, 127, {102, 120, 216, 255}, {0.0625f, 0.09375f, -0.03125f, -0.125f}},
    {"qwen3_moe_ct_mxfp4", 0, 3, Which::up, 60, {83, 154, 189, 255}, {-0.046875f, 0.0234375f, 0.046875f, 0.0078125f}},
    {"qwen3_moe_ct_mxfp4", 0, 1, Which::down, 0, {45, 55, 83, 127}, {0.1875f, -0.09375f, 0.125f, -0.015625f}},
    {"qwen3_moe_ct_nvfp4", 0, 3, Which::gate, 127, {84, 148, 234, 255}, {-0.178639993f, 0.0893199963f, 0.158791105f, 0.011578518f}},
    {"qwen3_moe_ct_nvfp4", 0, 3, Which::up, 105, {2, 38, 179, 255}, {0.00432427091f, -0.0155673753f, -0.0467021258f, -0.00389184382f}},
    {"qwen3_moe_ct_nvfp4", 0, 1, Which::down, 48, {73, 106, 108, 127}, {-0.0877595947f, -0.0197459088f, -0.236950906f, 0.0142609341f}},
    {"qwen3_moe_fp8_block", 1, 3, Which::gate, 127, {65, 125, 139, 255}, {-0.219893128f, -0.329839692f, -0.332439423f, 0.0646409988f}},
    {"qwen3_moe_fp8_block", 1, 3, Which::up, 13, {71, 195, 219, 255}, {-0.00101871668f, 0.00378098618f, -0.0439969301f, 0.0192486569f}},
    {"qwen3_moe_fp8_block", 1, 1, Which::down, 14, {0, 24, 93, 127}, {0.0480257049f, -0.0308736674f, 0.102912225f, -0.1372163f}},
    {"qwen3_moe_fp8_channel", 0, 3, Which::gate, 127, {48, 120, 226, 255}, {0.0456546932f, 0.117397782f, 0.0358715446f, 0.0521767922f}},
    {"qwen3_moe_fp8_channel", 0, 3, Which::up, 1, {54, 87, 168, 255}, {0.0193838698f, -0.0107688166f, -0.0172301065f, -0.0215376331f}},
    {"qwen3_moe_fp8_channel", 0, 1, Which::down, 136, {49, 75, 115, 127}, {-0.0434227763f, -0.0192990117f, 0.0482475292f, 0.0289485175f}},
    {"mixtral_awq", 0, 3, Which::gate, 127, {6, 119, 207, 255}, {0.206359863f, -0.180664062f, -0.170898438f, 0.0854492188f}},
    {"mixtral_awq", 0, 3, Which::up, 85, {13, 70, 247, 255}, {0.00640487671f, -0.0102539062f, 0.0258255005f, -0.0051651001f}},
    {"mixtral_awq", 0, 1, Which::down, 206, {15, 51, 71, 127}, {-0.139709473f, -0.0232849121f, -0.151596069f, -0.212234497f}},
    {"mixtral_gptq", 0, 3, Which::gate, 127, {43, 161, 250, 253}, {0.0856933594f, 0.117248535f, 0.0830688477f, -0.166137695f}},
    {"mixtral_gptq", 0, 3, Which::up, 6, {73, 77, 113, 253}, {-0.0120391846f, 0.0120391846f, 0.00601959229f, 0.0173034668f}},
    {"mixtral_gptq", 0, 1, Which::down, 38, {101, 107, 111, 127}, {-0.132202148f, 0.132202148f, 0.132202148f, -0.0991516113f}},
    {"mixtral_gptq_act_order", 0, 3, Which::gate, 127, {171, 172, 174, 255}, {0.200195312f, -0.0538024902f, 0.376617432f, -0.121856689f}},
    {"mixtral_gptq_act_order", 0, 3, Which::up, 80, {66, 132, 229, 255}, {-0.0156707764f, 0.00783538818f, 0.00897216797f, 0.0313415527f}},
    {"mixtral_gptq_act_order", 0, 1, Which::down, 126, {7, 20, 44, 127}, {-0.0320739746f, 0.0407104492f, -0.0320739746f, -0.0962219238f}},
    {"qwen3_moe_ct_int3", 0, 3, Which::gate, 127, {64, 143, 231, 255}, {-0.278869629f, 0.170166016f, 0.0836181641f, -0.167236328f}},
    {"qwen3_moe_ct_int3", 0, 3, Which::up, 111, {3, 77, 207, 255}, {-0.031036377f, 0.0167388916f, -0.0123291016f, -0.0109786987f}},
    {"qwen3_moe_ct_int3", 0, 1, Which::down, 87, {2, 7, 62, 125}, {-0.132202148f, 0.0661010742f, 0.0722045898f, -0.0778198242f}},
    {"qwen3_moe_ct_int4", 0, 3, Which::gate, 127, {69, 77, 127, 254}, {0.0393981934f, -0.11819458f, -0.129821777f, 0.277069092f}},
    {"qwen3_moe_ct_int4", 0, 3, Which::up, 119, {32, 40, 83, 255}, {-0.00958251953f, 0.0239562988f, -0.0139770508f, -0.0170898438f}},
    {"qwen3_moe_ct_int4", 0, 1, Which::down, 52, {19, 55, 71, 127}, {0.022857666f, 0.0794677734f, 0.0786895752f, -0.133300781f}},
    {"qwen3_moe_ct_int4_asym", 0, 3, Which::gate, 127, {34, 79, 203, 255}, {0.188446045f, 0.175323486f, 0.126464844f, -0.167541504f}},
    {"qwen3_moe_ct_int4_asym", 0, 3, Which::up, 30, {72, 128, 246, 255}, {-0.0066986084f, -0.00491714478f, -0.018081665f, 0.00602722168f}},
    {"qwen3_moe_ct_int4_asym", 0, 1, Which::down, 15, {3, 40, 115, 126}, {0.091796875f, -0.0510559082f, 0.115203857f, -0.0230407715f}},
    {"qwen3_moe_ct_int8", 0, 3, Which::gate, 127, {95, 117, 250, 255}, {0.105829239f, 0.108547211f, -0.0149078369f, -0.117399216f}},
    {"qwen3_moe_ct_int8", 0, 3, Which::up, 107, {53, 100, 238, 255}, {-0.00677776337f, -0.00467300415f, -0.00187110901f, -0.00280666351f}},
    {"qwen3_moe_ct_int8", 0, 1, Which::down, 216, {30, 40, 84, 127}, {0.212317467f, 0.036907196f, 0.207326889f, -0.0329589844f}},
    {"tiny-gpt-oss-mxfp4", 3, 15, Which::gate, 255, {51, 169, 172, 255}, {-0.125f, -0.09375f, -0.03125f, 0.1875f}},
    {"tiny-gpt-oss-mxfp4", 3, 15, Which::up, 9, {37, 54, 78, 255}, {-0.125f, 0.1875f, -0.09375f, 0.125f}},
    {"tiny-gpt-oss-mxfp4", 3, 1, Which::down, 12, {48, 54, 153, 254}, {-0.00390625f, 0.001953125f, -0.001953125f, 0.001953125f}},
    // clang-format on
};

TEST(Checkpoint, DecodesToTheValuesOfAnotherDecoder) {
  for (const Decoded& want : kDecoded) {
    const LayerWeights weights = Checkpoint::open(directory_of(want.name)).weights(want.layer);
    const ExpertWeights& expert =
        want.expert < 0 ? weights.shared.at(0) : weights.routed.at(static_cast<std::size_t>(want.expert));
    const WeightMatrix& matrix = want.which == Which::gate ? *expert.gate
                                 : want.which == Which::up ? expert.up
                                                           : expert.down;
    std::vector<float> row(static_cast<std::size_t>(matrix.cols));
    decode_row(matrix, want.row, row.data());
    for (int i = 0; i < 4; ++i)
      // One rounding for a second scale, one for the literal.
      EXPECT_NEAR(row[static_cast<std::size_t>(want.columns[i])], want.values[i],
                  3e-7f * std::abs(want.values[i]))
          << want.name << " row " << want.row << " column " << want.columns[i];
  }
}

float element(const VectorView& vector, std::int64_t i) {
  return format::read_number(vector.dtype, vector.data + i * vector.stride);
}

TEST(Checkpoint, GptOssBiasesAreTakenApart) {
  const LayerWeights weights = Checkpoint::open(directory_of("gpt_oss_mxfp4")).weights(1);
  const ExpertWeights& expert = weights.routed.at(1);
  EXPECT_EQ(element(expert.gate_bias, 3), 0.55078125f);
  EXPECT_EQ(element(expert.up_bias, 3), 0.6015625f);
  EXPECT_EQ(element(expert.down_bias, 5), -0.2314453125f);
  EXPECT_EQ(element(weights.router.bias, 2), -0.181640625f);
  EXPECT_EQ(expert.gate_bias.size, 288);
}

TEST(Checkpoint, DeepseekRoutersHaveATableOrABias) {
  const Checkpoint model = Checkpoint::open(directory_of("deepseek_v4_fp4"));
  const RouterWeights by_table = model.weights(0).router;
  ASSERT_EQ(by_table.table.size(), 32u * 3u);
  EXPECT_EQ(std::vector<std::int32_t>(by_table.table.begin() + 21, by_table.table.begin() + 24),
            (std::vector<std::int32_t>{6, 7, 5}));
  EXPECT_FALSE(by_table.selection_bias);
  const RouterWeights by_score = model.weights(2).router;
  EXPECT_TRUE(by_score.table.empty());
  EXPECT_EQ(element(by_score.selection_bias, 2), 0.1388835608959198f);
}

bool has_note(const Checkpoint& model, std::string_view part) {
  const auto& notes = model.info().notes;
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(part) != note.npos; });
}

TEST(Checkpoint, NotesWhatIsOdd) {
  const Checkpoint nvfp4 = Checkpoint::open(directory_of("deepseek_v4_nvfp4"));
  EXPECT_TRUE(has_note(nvfp4, "second scales of gate and up differ in 24 of 24 experts"));
  EXPECT_TRUE(has_note(nvfp4, "72 scales of activations are there and not used"));
  EXPECT_TRUE(has_note(nvfp4, "hidden_act is silu; swiglu_limit clamps routed and shared experts"));
  EXPECT_TRUE(Checkpoint::open(directory_of("mixtral_bf16")).info().notes.empty());
}

TEST(Checkpoint, InfoSaysWhatThereIs) {
  const ModelInfo info = Checkpoint::open(directory_of("deepseek_v4_nvfp4")).info();
  EXPECT_EQ(info.family, "deepseek_v4");
  EXPECT_EQ(info.architecture, "DeepseekV4ForCausalLM");
  EXPECT_EQ(info.quantisation, "fp8 in blocks of 128 x 128, routed experts NVFP4");
  EXPECT_EQ(info.files, 3);
  EXPECT_EQ(info.tensors, 3 * 104);
  EXPECT_EQ(info.file_bytes, 555950 + 555158 + 555158);
  EXPECT_EQ(info.moe_layers, (std::vector<int>{0, 1, 2}));
}

TEST(Checkpoint, LayersThatAreNotThereAreRefused) {
  const Checkpoint model = Checkpoint::open(directory_of("mixtral_bf16"));
  for (const int layer : {-1, 1, 1000}) {
    EXPECT_THROW(model.spec(layer), Error);
    EXPECT_THROW(model.weights(layer), Error);
    EXPECT_THROW(model.layer_bytes(layer), Error);
  }
}

TEST(Checkpoint, WeightsOutliveTheCheckpoint) {
  LayerWeights weights;
  { weights = Checkpoint::open(directory_of("mixtral_bf16")).weights(0); }
  std::vector<float> row(256);
  decode_row(*weights.routed.at(3).gate, 127, row.data());
  EXPECT_EQ(row[255], 0.3046875f);
}

}  // namespace
}  // namespace sluice
