// SPDX-License-Identifier: Apache-2.0
// Families by their samples: what a configuration in the published words means for each layer, and where in
// the files a weight is found. The samples are written by testing/sample_blocks.cpp, which knows names and
// layouts and nothing of specs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "editable_model.h"
#include "format/formats.h"
#include "format/geometry.h"
#include "format/scales.h"
#include "sluice/checkpoint.h"
#include "testing/check.h"
#include "testing/rounding.h"
#include "testing/sample.h"

namespace sluice {
namespace {

using testing::TemporaryDirectory;

/// What one layer of a sample is.
struct Want {
  const char* sample;
  const char* family;
  std::vector<int> moe_layers;
  int layer = 0;
  const char* score;
  const char* activation = "silu";
  ActivationParams params = {};
  int top_k = 3;
  int groups = 1, groups_kept = 1;
  bool two_best = false;
  bool selection_bias = false, renormalise = true, expert_scale = false;
  float scale = 1;
  int shared = 0;  // intermediate
  ActivationParams shared_params = {};
  bool sigmoid_gate = false, weight_on_input = false;
  const char* format = "bf16";
  const char* note = "";  // part of one
};

const Want kWants[] = {
    {.sample = "deepseek-v2",
     .family = "deepseek_v2",
     .moe_layers = {1, 2},
     .layer = 1,
     .score = "softmax",
     .groups = 4,
     .groups_kept = 2,
     .renormalise = false,
     .scale = 16,
     .shared = 192},
    {.sample = "deepseek-v3",
     .family = "deepseek_v3",
     .moe_layers = {1, 2},
     .layer = 2,
     .score = "sigmoid",
     .groups = 4,
     .groups_kept = 2,
     .two_best = true,
     .selection_bias = true,
     .scale = 2.5f,
     .shared = 96,
     .format = "fp8_block128"},
    {.sample = "kimi-k2",
     .family = "kimi_k25",
     .moe_layers = {1, 2},
     .layer = 1,
     .score = "sigmoid",
     .two_best = true,
     .selection_bias = true,
     .scale = 2.827f,
     .shared = 96},
    {.sample = "glm-4.5",
     .family = "glm4_moe",
     .moe_layers = {1, 2},
     .layer = 1,
     .score = "sigmoid",
     .two_best = true,
     .selection_bias = true,
     .scale = 2.5f,
     .shared = 96},
    {.sample = "glm-5.3-flash",
     .family = "glm5_next",
     .moe_layers = {1, 2},
     .layer = 1,
     .score = "sigmoid",
     .params = {.limit = 10},
     .two_best = true,
     .selection_bias = true,
     .scale = 2.5f,
     .shared = 96,
     .shared_params = {.limit = 10},
     .note = "swiglu_limit clamps routed and shared"},
    {.sample = "qwen2-moe",
     .family = "qwen2_moe",
     .moe_layers = {0, 1},
     .score = "softmax",
     .renormalise = false,
     .shared = 160,
     .sigmoid_gate = true},
    {.sample = "qwen3-next",
     .family = "qwen3_next",
     .moe_layers = {0, 1},
     .score = "softmax",
     .shared = 96,
     .sigmoid_gate = true},
    {.sample = "qwen3.5-moe",
     .family = "qwen3_5_moe",
     .moe_layers = {0, 1},
     .score = "softmax",
     .shared = 96,
     .sigmoid_gate = true},
    {.sample = "olmoe", .family = "olmoe", .moe_layers = {0, 1}, .score = "softmax", .renormalise = false},
    {.sample = "granite-moe",
     .family = "granitemoehybrid",
     .moe_layers = {0, 1},
     .score = "softmax_selected",
     .renormalise = false,
     .shared = 160},
    {.sample = "minimax-m2",
     .family = "minimax_m2",
     .moe_layers = {0, 1},
     .score = "sigmoid",
     .selection_bias = true,
     .format = "fp8_block128"},
    {.sample = "minimax-m3",
     .family = "minimax_m3_vl",
     .moe_layers = {1, 2},
     .layer = 1,
     .score = "sigmoid",
     .params = {.limit = 7, .slope = 1.702f, .shift = 1},
     .selection_bias = true,
     .scale = 2,
     .shared = 96,
     .shared_params = {.limit = 7, .slope = 1.702f, .shift = 1},
     .format = "mxfp8",
     .note =
         "hidden_act is swigluoai; the activation is gpt-oss's with slope 1.702 and shift 1 (swiglu_beta is "
         "absent"},
    // The limits are per layer, routed and shared apart; a layer without any is plain SwiGLU.
    {.sample = "step-3.5",
     .family = "step3p5",
     .moe_layers = {1, 2, 3},
     .layer = 1,
     .score = "sigmoid",
     .selection_bias = true,
     .scale = 3,
     .shared = 96},
    {.sample = "step-3.5",
     .family = "step3p5",
     .moe_layers = {1, 2, 3},
     .layer = 2,
     .score = "sigmoid",
     .activation = "silu_then_clamp",
     .selection_bias = true,
     .scale = 3,
     .shared = 96,
     .shared_params = {.limit = 16}},
    {.sample = "step-3.5",
     .family = "step3p5",
     .moe_layers = {1, 2, 3},
     .layer = 3,
     .score = "sigmoid",
     .activation = "silu_then_clamp",
     .params = {.limit = 7},
     .selection_bias = true,
     .scale = 3,
     .shared = 96},
    {.sample = "ling-3.0",
     .family = "bailing_moe_v3",
     .moe_layers = {1, 2, 3},
     .layer = 2,
     .score = "sigmoid",
     .activation = "silu_then_clamp",
     .groups = 4,
     .groups_kept = 2,
     .two_best = true,
     .selection_bias = true,
     .scale = 2.5f,
     .shared = 96,
     .shared_params = {.limit = 5},
     .note = "clamp after the SiLU"},
    {.sample = "ling-3.0",
     .family = "bailing_moe_v3",
     .moe_layers = {1, 2, 3},
     .layer = 3,
     .score = "sigmoid",
     .activation = "silu_then_clamp",
     .params = {.limit = 4},
     .groups = 4,
     .groups_kept = 2,
     .two_best = true,
     .selection_bias = true,
     .scale = 2.5f,
     .shared = 96,
     .shared_params = {.limit = 7}},
    {.sample = "k-exaone-2",
     .family = "exaone_moe",
     .moe_layers = {1, 2},
     .layer = 1,
     .score = "sigmoid",
     .two_best = true,
     .selection_bias = true,
     .scale = 2.5f,
     .shared = 96},
    {.sample = "k-exaone-2",
     .family = "exaone_moe",
     .moe_layers = {1, 2},
     .layer = 2,
     .score = "sigmoid",
     .params = {.limit = 7},
     .two_best = true,
     .selection_bias = true,
     .scale = 2.5f,
     .shared = 96,
     .shared_params = {.limit = 7},
     .note = "clamps before the activation"},
    {.sample = "ernie-4.5",
     .family = "ernie4_5_moe",
     .moe_layers = {1, 2},
     .layer = 1,
     .score = "softmax",
     .selection_bias = true,
     .shared = 192},
    {.sample = "llama-4",
     .family = "llama4",
     .moe_layers = {0, 1},
     .score = "sigmoid_selected",
     .top_k = 1,
     .renormalise = false,
     .shared = 96,
     .weight_on_input = true},
    {.sample = "nemotron-3",
     .family = "nemotron_h",
     .moe_layers = {2, 3},
     .layer = 3,
     .score = "sigmoid",
     .activation = "relu2",
     .two_best = true,
     .selection_bias = true,
     .scale = 2.5f,
     .shared = 192},
    {.sample = "gemma-4",
     .family = "gemma4",
     .moe_layers = {0, 1},
     .score = "softmax",
     .activation = "gelu_tanh",
     .expert_scale = true,
     .note = "per_expert_scale into the weights"},
    {.sample = "kimi-linear-situ",
     .family = "kimi_linear",
     .moe_layers = {1, 2},
     .layer = 1,
     .score = "sigmoid",
     .activation = "situ",
     .params = {.situ_beta = 4, .situ_linear_beta = 25},
     .two_best = true,
     .selection_bias = true,
     .shared = 96,
     .shared_params = {.situ_beta = 4, .situ_linear_beta = 25},
     .note = "without the bias that selects"},
};

/// A sample in a directory of its own, opened.
class Sample {
 public:
  explicit Sample(std::string_view family) {
    testing::write_sample(family, directory_.path().string(), 1);
    model_ = Checkpoint::open(directory_.path().string());
  }
  const Checkpoint& operator*() const { return model_; }
  const Checkpoint* operator->() const { return &model_; }
  TensorFile file() const { return TensorFile::open(directory_.file("model.safetensors")); }

  /// Element `at` of a BF16 or F32 tensor, in the order of the file.
  float stored(std::string_view tensor, std::int64_t at) const {
    const TensorFile file = this->file();
    const TensorView& view = file.at(tensor);
    return format::read_number(view.dtype, view.data + at * bits(view.dtype) / 8);
  }

 private:
  TemporaryDirectory directory_;
  Checkpoint model_;
};

bool has_note(const Checkpoint& model, std::string_view part) {
  const auto& notes = model.info().notes;
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& one) { return one.find(part) != one.npos; });
}

/// GoogleTest would print the bytes.
void PrintTo(const Want& want, std::ostream* out) { *out << want.sample << " layer " << want.layer; }

/// Written once a process.
const Sample& sample_of(const std::string& family) {
  static std::map<std::string, Sample> samples;
  return samples.try_emplace(family, family).first->second;
}

class FamilyTest : public ::testing::TestWithParam<Want> {};

TEST_P(FamilyTest, SpecIsWhatTheSheetSays) {
  const Want& want = GetParam();
  const Sample& model = sample_of(want.sample);
  EXPECT_EQ(model->info().family, want.family);
  EXPECT_EQ(model->info().moe_layers, want.moe_layers);
  const LayerSpec spec = model->spec(want.layer);
  EXPECT_EQ(spec.routed.hidden, 128);
  EXPECT_EQ(spec.routed.intermediate, 96);
  EXPECT_EQ(spec.routed.experts, 8);
  EXPECT_EQ(spec.routed.top_k, want.top_k);
  EXPECT_EQ(spec.routed.activation.str(), want.activation);
  EXPECT_EQ(spec.routed.params, want.params);
  EXPECT_EQ(spec.routed.weight_on_input, want.weight_on_input);
  EXPECT_EQ(spec.routed.formats.up.str(), want.format);
  EXPECT_EQ(spec.routed.formats.down.str(), want.format);
  EXPECT_TRUE(std::string_view(want.note).empty() || has_note(*model, want.note)) << want.note;
  ASSERT_EQ(spec.shared.has_value(), want.shared > 0);
  if (!spec.shared) return;
  EXPECT_EQ(spec.shared->experts.intermediate, want.shared);
  EXPECT_EQ(spec.shared->experts.activation.str(), want.activation);
  EXPECT_EQ(spec.shared->experts.params, want.shared_params);
  EXPECT_EQ(spec.shared->sigmoid_gate, want.sigmoid_gate);
  EXPECT_FALSE(spec.shared->experts.weight_on_input);
}

TEST_P(FamilyTest, RouterIsWhatTheSheetSays) {
  const Want& want = GetParam();
  const Sample& model = sample_of(want.sample);
  const RouterSpec router = model->spec(want.layer).router;
  EXPECT_EQ(router.score.str(), want.score);
  EXPECT_EQ(router.groups, want.groups);
  EXPECT_EQ(router.groups_kept, want.groups_kept);
  EXPECT_EQ(router.group_score == GroupScore::two_best, want.two_best);
  EXPECT_EQ(router.selection_bias, want.selection_bias);
  EXPECT_EQ(router.expert_scale, want.expert_scale);
  EXPECT_EQ(router.renormalise, want.renormalise);
  EXPECT_EQ(router.scale, want.scale);
  EXPECT_FALSE(router.bias);
  EXPECT_FALSE(router.by_token_id);
}

TEST_P(FamilyTest, WeightsFitTheSpec) {
  const Sample& model = sample_of(GetParam().sample);
  for (const int layer : model->info().moe_layers)
    EXPECT_NO_THROW(validate(model->spec(layer), model->weights(layer))) << layer;
}

std::string name_of(const ::testing::TestParamInfo<Want>& info) {
  std::string name = std::string(info.param.sample) + "_layer_" + std::to_string(info.param.layer);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, FamilyTest, ::testing::ValuesIn(kWants), name_of);

/// Every backend of this machine against the definition, on the last layer of every sample.
TEST(FamilySamples, RunAsTheDefinitionSays) {
  for (const std::string_view family : testing::sample_families()) {
    const Sample& model = sample_of(std::string(family));
    const testing::CheckReport report = testing::check(*model, {.layers = {model->info().moe_layers.back()}});
    EXPECT_TRUE(report.passed()) << family;
    for (const testing::CheckCase& one : report.cases)
      for (const std::string& failure : one.failures)
        ADD_FAILURE() << family << " " << one.backend << ": " << failure;
    // A processor's backend that has a model's formats has its features too, but for act-order with int8.
    for (const testing::NotRun& one : report.not_run) {
      if (testing::rounding_of(one.backend) != testing::Rounding::none) continue;
      EXPECT_TRUE(!one.backend.starts_with("cpu.") || one.why.find("weights:") != std::string::npos ||
                  one.why.find("features:") == std::string::npos)
          << family << " " << one.backend << ": " << one.why;
    }
  }
}

float element(const WeightMatrix& matrix, std::int64_t row, std::size_t col) {
  std::vector<float> values(static_cast<std::size_t>(matrix.cols));
  decode_row(matrix, row, values.data());
  return values[col];
}

constexpr std::int64_t kHidden = 128, kWidth = 96;

TEST(FamilyLayouts, FusedHalvesAreGateThenUp) {
  const Sample& model = sample_of("qwen3.5-moe");
  const ExpertWeights expert = model->weights(0).routed[5];
  const std::string stack = "model.language_model.layers.0.mlp.experts.";
  const std::int64_t at = 5 * 2 * kWidth;  // the expert's first row
  EXPECT_EQ(element(*expert.gate, 7, 11), model.stored(stack + "gate_up_proj", (at + 7) * kHidden + 11));
  EXPECT_EQ(element(expert.up, 7, 11),
            model.stored(stack + "gate_up_proj", (at + kWidth + 7) * kHidden + 11));
  EXPECT_EQ(element(expert.down, 100, 95),
            model.stored(stack + "down_proj", (5 * kHidden + 100) * kWidth + 95));
  EXPECT_EQ(model->weights(0).shared_gate.size, kHidden);
}

TEST(FamilyLayouts, Llama4IsTransposed) {
  const Sample& model = sample_of("llama-4");
  const ExpertWeights expert = model->weights(1).routed[3];
  const std::string stack = "language_model.model.layers.1.feed_forward.experts.";
  const auto in = [&](std::int64_t row, std::int64_t output) {
    return model.stored(stack + "gate_up_proj", (3 * kHidden + row) * 2 * kWidth + output);
  };
  EXPECT_EQ(element(*expert.gate, 7, 11), in(11, 7));
  EXPECT_EQ(element(expert.up, 7, 11), in(11, kWidth + 7));
  EXPECT_EQ(element(expert.down, 100, 95),
            model.stored(stack + "down_proj", (3 * kWidth + 95) * kHidden + 100));
}

TEST(FamilyLayouts, StepHasAStackForEach) {
  const Sample& model = sample_of("step-3.5");
  const ExpertWeights expert = model->weights(2).routed[6];
  const std::string stack = "model.layers.2.moe.";
  const std::int64_t at = (6 * kWidth + 7) * kHidden + 11;
  EXPECT_EQ(element(*expert.gate, 7, 11), model.stored(stack + "gate_proj.weight", at));
  EXPECT_EQ(element(expert.up, 7, 11), model.stored(stack + "up_proj.weight", at));
  EXPECT_EQ(element(expert.down, 100, 95),
            model.stored(stack + "down_proj.weight", (6 * kHidden + 100) * kWidth + 95));
  EXPECT_EQ(element(model->weights(2).shared[0].up, 3, 4),
            model.stored("model.layers.2.share_expert.up_proj.weight", 3 * kHidden + 4));
}

TEST(FamilyLayouts, GraniteFusesItsSharedExpertToo) {
  const Sample& model = sample_of("granite-moe");
  const LayerWeights weights = model->weights(0);
  const std::string layer = "model.layers.0.";
  const std::int64_t at = (2 * 2 * kWidth + kWidth + 7) * kHidden + 11;
  EXPECT_EQ(element(weights.routed[2].up, 7, 11),
            model.stored(layer + "block_sparse_moe.input_linear.weight", at));
  EXPECT_EQ(element(*weights.shared[0].gate, 7, 11),
            model.stored(layer + "shared_mlp.input_linear.weight", 7 * kHidden + 11));
  EXPECT_EQ(element(weights.shared[0].up, 7, 11),
            model.stored(layer + "shared_mlp.input_linear.weight", (160 + 7) * kHidden + 11));
}

TEST(FamilyLayouts, MixtralNamesAreGateW1UpW3) {
  const Sample& model = sample_of("kimi-linear-situ");
  const ExpertWeights expert = model->weights(1).routed[4];
  const std::string name = "model.layers.1.block_sparse_moe.experts.4.";
  EXPECT_EQ(element(*expert.gate, 7, 11), model.stored(name + "w1.weight", 7 * kHidden + 11));
  EXPECT_EQ(element(expert.up, 7, 11), model.stored(name + "w3.weight", 7 * kHidden + 11));
}

TEST(FamilyLayouts, NemotronHasNoGateMatrix) {
  const Sample& model = sample_of("nemotron-3");
  EXPECT_FALSE(model->spec(2).routed.formats.gate);
  EXPECT_FALSE(model->weights(2).routed[0].gate);
  EXPECT_FALSE(model->weights(2).shared[0].gate);
}

TEST(FamilyLayouts, ErniesBiasIsARow) {
  const Sample& model = sample_of("ernie-4.5");
  const VectorView bias = model->weights(1).router.selection_bias;
  ASSERT_EQ(bias.size, 8);
  EXPECT_EQ(format::read_number(bias.dtype, bias.data + 5 * bias.stride),
            model.stored("model.layers.1.mlp.moe_statics.e_score_correction_bias", 5));
}

/// The router sees RMSNorm(x) scale hidden^-1/2, the layer is given RMSNorm(x) norm.
TEST(FamilyLayouts, GemmasRouterTakesUpItsOwnInput) {
  const Sample& model = sample_of("gemma-4");
  const LayerWeights weights = model->weights(1);
  const std::string layer = "model.language_model.layers.1.";
  for (const std::int64_t c : {0, 64, 127}) {
    const double want = double{model.stored(layer + "router.proj.weight", 3 * kHidden + c)} *
                        model.stored(layer + "router.scale", c) / std::sqrt(128.0) /
                        model.stored(layer + "pre_feedforward_layernorm_2.weight", c);
    EXPECT_FLOAT_EQ(element(*weights.router.weight, 3, static_cast<std::size_t>(c)),
                    static_cast<float>(want));
  }
  const VectorView scale = weights.router.expert_scale;
  EXPECT_EQ(format::read_number(scale.dtype, scale.data + 6 * scale.stride),
            model.stored(layer + "router.per_expert_scale", 6));
}

}  // namespace
}  // namespace sluice
