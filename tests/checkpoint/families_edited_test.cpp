// SPDX-License-Identifier: Apache-2.0
// Families after an edit: what is refused, what no limit means, what the generic family takes for granted.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "editable_model.h"
#include "edited.h"
#include "format/geometry.h"
#include "sluice/checkpoint.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using testing::EditableModel;
using testing::NamedTensor;

constexpr float kNone = std::numeric_limits<float>::infinity();

/// Gives `key` of config.json another value; `value` empty: another name, so that it is absent.
void set(EditableModel& model, const std::string& key, std::string_view value) {
  const std::string quoted = "\"" + key + "\":";
  const std::size_t at = model.config.find(quoted);
  if (at == std::string::npos) throw std::logic_error("no key " + key);
  if (value.empty()) return EditableModel::replace(model.config, quoted, "\"absent_" + key + "\":");
  const std::size_t begin = at + quoted.size() + 1;
  const char first = model.config[begin];
  const std::size_t end = first == '['   ? model.config.find(']', begin) + 1
                          : first == '"' ? model.config.find('"', begin + 1) + 1
                                         : model.config.find_first_of(",\n}", begin);
  model.config.replace(begin, end - begin, value);
}

/// Adds a key beside `beside`.
void add(EditableModel& model, const std::string& beside, const std::string& text) {
  EditableModel::replace(model.config, "\"" + beside + "\":", text + ", \"" + beside + "\":");
}

using Edit = std::function<void(EditableModel&)>;

/// A sample after an edit, opened.
struct Edited : testing::Edited {
  Edited(const char* family, const Edit& edit) : testing::Edited(EditableModel::of_sample(family), edit) {}
};

struct Refused {
  const char* name;
  const char* sample;
  Edit edit;
  const char* code;
  const char* says;
};

// clang-format off
const Refused kRefused[] = {
  {"experts_counted_twice", "qwen3-moe", [](EditableModel& m) { add(m, "num_experts", "\"num_local_experts\": 5"); },
   "config_contradiction", "num_local_experts"},
    {"short_routed_list", "step-3.5", [](auto& m) { set(m, "swiglu_limits", "[0, 0, 7]"); },
     "short_layer_list", "swiglu_limits has 3 entries, the model has 4 layers"},
    {"short_shared_list", "step-3.5", [](auto& m) { set(m, "swiglu_limits_shared", "[16]"); },
     "short_layer_list", "swiglu_limits_shared has 1 entries"},
    {"short_list_of_ling", "ling-3.0", [](auto& m) { set(m, "share_expert_swiglu_limit_list", "[0, 5]"); },
     "short_layer_list", "share_expert_swiglu_limit_list has 2 entries"},
    {"short_list_of_exaone", "k-exaone-2", [](auto& m) { set(m, "swiglu_limits", "[7, 7]"); },
     "short_layer_list", "swiglu_limits has 2 entries"},
    {"negative_limit", "step-3.5", [](auto& m) { set(m, "swiglu_limits", "[0, -1, 0, 7]"); },
     "bad_limit", "swiglu_limits is -1"},
    {"short_list_of_layers", "minimax-m3", [](auto& m) { set(m, "moe_layer_freq", "[0, 1]"); },
     "short_layer_list", "moe_layer_freq"},
    {"no_kind_of_layer", "glm-5.3-flash", [](auto& m) { set(m, "mlp_layer_types", R"(["dense", "sparse", "wide"])"); },
     "config_contradiction", "mlp_layer_types"},
    {"layers_that_are_no_numbers", "step-3.5", [](auto& m) { set(m, "moe_layers_enum", "\"1;2\""); },
     "config_wrong_type", "moe_layers_enum"},
    {"another_score_of_deepseek", "deepseek-v3", [](auto& m) { set(m, "scoring_func", "\"softmax\""); },
     "unknown_router", "scoring_func is \"softmax\""},
    {"another_method_of_deepseek", "deepseek-v3", [](auto& m) { set(m, "topk_method", "\"greedy\""); },
     "unknown_router", "topk_method is \"greedy\""},
    {"another_method_of_deepseek_v2", "deepseek-v2", [](auto& m) { set(m, "topk_method", "\"noaux_tc\""); },
     "unknown_router", "topk_method"},
    {"renormalised_and_scaled", "deepseek-v2", [](auto& m) { set(m, "norm_topk_prob", "true"); },
     "unknown_router", "norm_topk_prob is true"},
    {"another_score_of_step", "step-3.5", [](auto& m) { set(m, "moe_router_activation", "\"softmax\""); },
     "unknown_router", "moe_router_activation"},
    {"another_score_of_minimax", "minimax-m2", [](auto& m) { set(m, "scoring_func", "\"softmax\""); },
     "unknown_router", "scoring_func"},
    {"another_score_of_ling", "ling-3.0", [](auto& m) { set(m, "score_function", "\"softmax\""); },
     "unknown_router", "score_function"},
    {"groups_that_do_not_divide", "deepseek-v3", [](auto& m) { set(m, "n_group", "3"); },
     "config_contradiction", "n_group is 3"},
    {"more_groups_than_there_are", "deepseek-v3", [](auto& m) { set(m, "topk_group", "5"); },
     "config_contradiction", "topk_group is 5"},
    {"another_activation_of_minimax", "minimax-m3", [](auto& m) { set(m, "hidden_act", "\"gelu\""); },
     "unknown_activation", "hidden_act is \"gelu\""},
    {"no_slope_of_minimax", "minimax-m3", [](auto& m) { set(m, "swiglu_alpha", ""); },
     "unknown_limit", "absent_swiglu_alpha"},
    {"a_gate_in_nemotron", "nemotron-3", [](auto& m) { set(m, "mlp_hidden_act", "\"silu\""); },
     "unknown_activation", "mlp_hidden_act"},
    {"a_latent_width_that_is_another", "nemotron-3-super", [](auto& m) { set(m, "moe_latent_size", "32"); },
     "wrong_shape", "[96, 16]"},
    {"a_latent_width_that_is_gone", "nemotron-3-super", [](auto& m) { set(m, "moe_latent_size", "null"); },
     "wrong_shape", "expected"},
    {"a_latent_width_without_projections", "nemotron-3", [](auto& m) { set(m, "moe_latent_size", "64"); },
     "wrong_shape", "expected"},
    {"a_latent_width_of_zero", "nemotron-3-super", [](auto& m) { set(m, "moe_latent_size", "0"); },
     "config_out_of_range", "moe_latent_size"},
    {"a_missing_projection", "nemotron-3-super",
     [](auto& m) { m.remove("backbone.layers.3.mixer.fc2_latent_proj.weight"); }, "missing_tensor",
     "fc2_latent_proj"},
    {"a_bias_of_a_projection", "nemotron-3-super",
     [](auto& m) { m.add({"backbone.layers.3.mixer.fc1_latent_proj.bias", DType::f32, {1}, std::vector<std::byte>(4)}); },
     "unused_tensor", "F32 [1]"},
    {"a_norm_that_the_configuration_denies", "kimi-k3", [](auto& m) { set(m, "latent_moe_use_norm", "false"); },
     "unused_tensor", "routed_expert_norm"},
    {"a_norm_without_epsilon", "kimi-k3", [](auto& m) { set(m, "rms_norm_eps", ""); },
     "config_missing_key", "rms_norm_eps"},
    {"a_missing_norm", "kimi-k3",
     [](auto& m) { m.remove("language_model.model.layers.1.block_sparse_moe.routed_expert_norm.weight"); },
     "missing_tensor", "routed_expert_norm"},
    {"projections_that_the_configuration_denies", "kimi-k3",
     [](auto& m) { set(m, "routed_expert_hidden_size", "null"); }, "wrong_shape", "expected"},
    {"situ_without_beta", "kimi-linear-situ", [](auto& m) { set(m, "activation_situ_beta", ""); },
     "config_missing_key", "activation_situ_beta"},
    {"a_limit_of_a_family_without", "glm-4.5", [](auto& m) { add(m, "hidden_act", "\"swiglu_limit\": 7"); },
     "unknown_limit", "swiglu_limit"},
    {"a_limit_of_llama", "llama-4", [](auto& m) { add(m, "hidden_act", "\"swiglu_limit\": 7"); },
     "unknown_limit", "swiglu_limit"},
    {"missing_selection_bias", "glm-4.5", [](auto& m) { m.remove("model.layers.1.mlp.gate.e_score_correction_bias"); },
     "missing_tensor", "missing"},
    {"a_tensor_beside_the_stack", "step-3.5",
     [](auto& m) { m.add({"model.layers.2.moe.extra", DType::u8, {1}, std::vector<std::byte>(1)}); },
     "unused_tensor", "U8 [1]"},
    {"a_tensor_beside_the_shared_expert", "granite-moe",
     [](auto& m) { m.add({"model.layers.1.shared_mlp.extra", DType::u8, {1}, std::vector<std::byte>(1)}); },
     "unused_tensor", "U8 [1]"},
    {"a_stack_of_too_few", "qwen3.5-moe",
     [](auto& m) {
       NamedTensor& stack = m.tensor("model.language_model.layers.0.mlp.experts.down_proj");
       stack.bytes.resize(stack.bytes.size() / 8 * 7);
       stack.shape[0] = 7;
     },
     "wrong_shape", "[8, 128, 96]"},
    {"a_norm_that_loses_the_routers_input", "gemma-4",
     [](auto& m) { m.set("model.language_model.layers.1.pre_feedforward_layernorm_2.weight", 5, std::uint16_t{0}); },
     "router_input_lost", "element 5"},
};
// clang-format on

/// GoogleTest would print the bytes.
void PrintTo(const Refused& row, std::ostream* out) { *out << row.name; }

class FamilyRefused : public ::testing::TestWithParam<Refused> {};

TEST_P(FamilyRefused, SaysWhy) {
  const Refused& row = GetParam();
  try {
    const Edited model(row.sample, row.edit);
    for (const int layer : model->info().moe_layers) model->weights(layer);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.info().code), row.code) << error.what();
    EXPECT_NE(std::string(error.what()).find(row.says), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyRefused, ::testing::ValuesIn(kRefused),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(FamilyLimits, ZeroNullAndAbsentAreNone) {
  for (const char* limits : {"[0, 0, 0, 0]", "[null, null, null, null]", "null", "0", ""}) {
    const Edited model("ling-3.0", [=](EditableModel& m) {
      if (*limits == '\0') {
        set(m, "expert_swiglu_limit_list", "null");  // an unknown name would be refused
      } else {
        set(m, "expert_swiglu_limit_list", limits);
      }
    });
    EXPECT_EQ(model->spec(3).routed.params.limit, kNone) << limits;
    EXPECT_EQ(model->spec(3).shared->experts.params.limit, 7) << limits;
  }
  const Edited none("step-3.5", [](EditableModel& m) {
    set(m, "swiglu_limits", "null");
    set(m, "swiglu_limits_shared", "null");
  });
  EXPECT_EQ(none->spec(3).routed.activation.str(), "silu");
}

TEST(FamilyLimits, MinimaxSaysSiluAndMeansItsOwn) {
  const Edited model("minimax-m3", [](EditableModel& m) {
    set(m, "hidden_act", "\"silu\"");
    add(m, "swiglu_alpha", "\"swiglu_beta\": 0.5");
  });
  EXPECT_EQ(model->spec(1).routed.params, (ActivationParams{.limit = 7, .slope = 1.702f, .shift = 0.5f}));
  EXPECT_TRUE(model.notes("hidden_act is silu; the activation is gpt-oss's"));
}

TEST(FamilyLimits, NoLinearBetaLeavesUpAlone) {
  const Edited model("kimi-linear-situ",
                     [](EditableModel& m) { set(m, "activation_situ_linear_beta", "null"); });
  EXPECT_EQ(model->spec(1).routed.params, (ActivationParams{.situ_beta = 4}));
}

TEST(FamilyConflicts, TheListOfLayersCounts) {
  const Edited model("glm-5.3-flash",
                     [](EditableModel& m) { set(m, "mlp_layer_types", R"(["dense", "dense", "sparse"])"); });
  EXPECT_EQ(model->info().moe_layers, std::vector<int>{2});
  EXPECT_TRUE(model.notes("the list counts"));
}

TEST(FamilyConflicts, Qwen35RenormalisesWhateverItSays) {
  const Edited model("qwen3.5-moe",
                     [](EditableModel& m) { add(m, "hidden_act", "\"norm_topk_prob\": false"); });
  EXPECT_TRUE(model->spec(0).router.renormalise);
  EXPECT_TRUE(model.notes("norm_topk_prob is false"));
}

TEST(FamilyConflicts, LayersOfPredictionAreNoted) {
  const Edited model("deepseek-v3", [](EditableModel& m) {
    m.add({"model.layers.3.mlp.gate.weight", DType::u8, {1}, std::vector<std::byte>(1)});
  });
  EXPECT_TRUE(model.notes("layers from 3 on (multi-token prediction)"));
}

/// DeepSeek-V4.1: a model_type of its own, no layers by token id, tiles of 32 x 32, a bias for image tokens.
TEST(FamilyV41, TilesAreMxfp8WithRepeatedScales) {
  const Edited model("deepseek-v4", [](EditableModel& m) {
    set(m, "model_type", "\"deepseek_v4_1\"");
    set(m, "weight_block_size", "[32, 32]");
    m.index.clear();
    std::vector<NamedTensor> all;
    for (auto& [file, tensors] : std::exchange(m.files, {}))
      for (NamedTensor& tensor : tensors) {
        const bool shared = tensor.name.find("shared_experts") != tensor.name.npos;
        if (shared && tensor.name.ends_with(".scale")) {
          const bool down = tensor.name.find(".w2.") != tensor.name.npos;  // [256, 96], others [96, 256]
          tensor.shape = down ? std::vector<std::int64_t>{8, 3} : std::vector<std::int64_t>{3, 8};
          tensor.bytes.resize(24);
          for (std::size_t i = 0; i < 24; ++i) tensor.bytes[i] = static_cast<std::byte>(100 + i);
        }
        all.push_back(std::move(tensor));
      }
    m.files["model.safetensors"] = std::move(all);
    m.add({"layers.1.ffn.gate.bias_vl", DType::f32, {8}, std::vector<std::byte>(32)});
  });
  EXPECT_EQ(model->info().family, "deepseek_v4_1");
  EXPECT_TRUE(model.notes("here all tokens are text"));
  EXPECT_EQ(model->spec(1).shared->experts.formats.up.str(), "mxfp8");
  EXPECT_EQ(model->spec(1).routed.formats.up.str(), "mxfp4");
  EXPECT_NO_THROW(validate(model->spec(1), model->weights(1)));
  const LayerWeights weights = model->weights(1);
  const WeightMatrix& down = weights.shared[0].down;
  for (const std::int64_t row : {0, 31, 32, 255})
    for (const std::int64_t group : {0, 2})
      EXPECT_EQ(std::to_integer<int>(down.scales.data[row * down.scales.row_stride + group]),
                100 + row / 32 * 3 + group);
}

TEST(FamilyStacks, QuantisedStacksAreReadLikeSingleExperts) {
  // Step's FP8 release: stacks of codes with stacks of scales.
  const Edited model("step-3.5", [](EditableModel& m) {
    add(m, "hidden_act", R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["share_expert"]})");
    std::vector<NamedTensor> scales;
    for (NamedTensor& tensor : m.files["model.safetensors"]) {
      if (tensor.shape.size() != 3) continue;
      tensor.dtype = DType::f8_e4m3;
      tensor.bytes.assign(tensor.bytes.size() / 2, std::byte{0x38});  // 1
      std::vector<float> numbers;
      for (int e = 0; e < 8; ++e) numbers.push_back(static_cast<float>(e + 1));
      scales.push_back(testing::tensor_of(tensor.name + "_scale_inv", DType::f32, {8, 1, 1},
                                          std::span<const float>(numbers)));
    }
    for (NamedTensor& scale : scales) m.add(std::move(scale));
  });
  EXPECT_EQ(model->spec(1).routed.formats.down.str(), "fp8_block128");
  EXPECT_EQ(model->spec(1).shared->experts.formats.down.str(), "bf16");
  const LayerWeights weights = model->weights(1);
  std::vector<float> row(128);
  decode_row(weights.routed[4].up, 95, row.data());
  EXPECT_EQ(row[127], 5);
}

TEST(FamilyStacks, QuantisedQwen35StoresEachExpertAlone) {
  const Edited model("qwen3-next", [](EditableModel& m) { set(m, "model_type", "\"qwen3_5_moe_text\""); });
  EXPECT_EQ(model->spec(0).routed.experts, 8);
}

TEST(Generic, ReadsConventionalNamesAndSaysWhatItAssumed) {
  const Edited biased("glm-4.5", [](EditableModel& m) {
    set(m, "model_type", "\"glm9\"");
    add(m, "hidden_act", "\"scoring_func\": \"sigmoid\"");
  });
  EXPECT_EQ(biased->info().family, "generic");
  EXPECT_TRUE(biased.notes("the model_type \"glm9\" is not known and was read by conventions"));
  EXPECT_TRUE(biased.notes("bias is for selecting"));
  const Edited known("glm-4.5", [](EditableModel&) {});
  EXPECT_EQ(biased->info().moe_layers, known->info().moe_layers);
  const LayerSpec a = biased->spec(1), b = known->spec(1);
  EXPECT_EQ(a.router.score, b.router.score);
  EXPECT_TRUE(a.router.selection_bias && a.router.renormalise);
  EXPECT_EQ(a.router.scale, b.router.scale);
  ASSERT_TRUE(a.shared);
  EXPECT_EQ(a.shared->experts.intermediate, 96);

  const Edited soft("qwen2-moe", [](EditableModel& m) { set(m, "model_type", "\"qwen9\""); });
  EXPECT_TRUE(soft.notes("softmax over all experts"));
  EXPECT_FALSE(soft->spec(0).router.renormalise);
  EXPECT_TRUE(soft->spec(0).shared->sigmoid_gate);
  EXPECT_EQ(soft->spec(0).shared->experts.intermediate, 160);
}

TEST(Generic, RefusesWhatItCannotKnow) {
  struct Row {
    const char* sample;
    Edit edit;
    const char* code;
    const char* says;
  };
  const Row rows[] = {
      {"glm-4.5", [](EditableModel&) {}, "unknown_family", "nothing says how the router scores"},
      {"olmoe", [](EditableModel& m) { set(m, "norm_topk_prob", ""); }, "unknown_family", "norm_topk_prob"},
      {"olmoe", [](EditableModel& m) { add(m, "hidden_act", "\"scoring_func\": \"tanh\""); },
       "unknown_family", "\"tanh\""},
      {"olmoe", [](EditableModel& m) { set(m, "hidden_act", "\"mish\""); }, "unknown_activation", "mish"},
      {"olmoe", [](EditableModel& m) { set(m, "hidden_act", ""); }, "unknown_family", "the activation"},
      {"olmoe", [](EditableModel& m) { add(m, "hidden_act", "\"swiglu_limit\": 7"); }, "unknown_limit",
       "swiglu_limit"},
      {"olmoe", [](EditableModel& m) { add(m, "hidden_act", "\"moe_latent_size\": 64"); }, "unknown_family",
       "moe_latent_size"},
      {"olmoe",
       [](EditableModel& m) {
         m.add({"model.layers.0.mlp.x", DType::u8, {1}, std::vector<std::byte>(1)});
       },
       "unused_tensor", "nothing uses it"},
      {"step-3.5",
       [](EditableModel& m) {
         set(m, "swiglu_limits", "null");
         set(m, "swiglu_limits_shared", "null");
       },
       "unknown_family", "beside a gate.weight"},
      {"llama-4", [](EditableModel&) {}, "unknown_family", "beside a gate.weight"},
  };
  for (const Row& row : rows) {
    try {
      Edited(row.sample, [&](EditableModel& m) {
        set(m, "model_type", "\"nobody\"");
        row.edit(m);
      });
      ADD_FAILURE() << row.sample << " " << row.says;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.info().code), row.code) << error.what();
      EXPECT_NE(std::string(error.what()).find(row.says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace sluice
