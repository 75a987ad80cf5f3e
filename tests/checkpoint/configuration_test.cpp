// SPDX-License-Identifier: Apache-2.0
// Configurations that are in order, and what follows from them.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "checkpoint/module_rules.h"
#include "checkpoint/pattern.h"
#include "corruption.h"
#include "edited.h"
#include "sluice/checkpoint.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using testing::EditableModel;

constexpr float kNone = std::numeric_limits<float>::infinity();

/// A fixture after an edit, opened.
struct Edited : testing::Edited {
  template <class Edit>
  Edited(const char* fixture, Edit edit) : testing::Edited(EditableModel::of(fixture), edit) {}
};

Edited with_limit(const char* fixture, const char* written, const char* limit) {
  return Edited(fixture, [=](EditableModel& m) { m.in_config(written, limit); });
}

TEST(Limits, ZeroNullAndAbsentMeanNone) {
  for (const char* limit :
       {"\"swiglu_limit\": 0", "\"swiglu_limit\": null", "\"other\": 1", "\"swiglu_limit\": -0.0"}) {
    const Edited model = with_limit(testing::kV4, "\"swiglu_limit\": 10.0", limit);
    EXPECT_EQ(model->spec(1).routed.params.limit, kNone) << limit;
    EXPECT_EQ(model->spec(1).shared->experts.params.limit, kNone) << limit;
  }
}

TEST(Limits, AListGivesEachLayerItsOwn) {
  const Edited model =
      with_limit(testing::kV4, "\"swiglu_limit\": 10.0", "\"swiglu_limit\": [4, null, 7.5, 99]");
  EXPECT_EQ(model->spec(0).routed.params.limit, 4);
  EXPECT_EQ(model->spec(1).routed.params.limit, kNone);
  EXPECT_EQ(model->spec(2).routed.params.limit, 7.5f);
  EXPECT_EQ(model->spec(2).shared->experts.params.limit, 7.5f);
}

TEST(Limits, GptOssWithoutOneHasTheFamilysAndSaysSo) {
  const Edited absent = with_limit(testing::kGptOss, "\"swiglu_limit\": 7.0", "\"other\": 1");
  EXPECT_EQ(absent->spec(0).routed.params.limit, 7);
  EXPECT_TRUE(absent.notes("no swiglu_limit; the family's constant 7"));
  const Edited none = with_limit(testing::kGptOss, "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 0");
  EXPECT_EQ(none->spec(0).routed.params.limit, kNone);
  EXPECT_EQ(none->spec(0).routed.params.slope, 1.702f);
}

TEST(Families, QwenKnowsDenseLayers) {
  // Layer 1 becomes dense: its tensors are left alone.
  const Edited by_list(testing::kBlock, [](EditableModel& m) {
    m.in_config("\"mlp_only_layers\": []", "\"mlp_only_layers\": [1]");
  });
  EXPECT_EQ(by_list->info().moe_layers, std::vector<int>{0});
  const Edited by_step(testing::kBlock, [](EditableModel& m) {
    m.in_config("\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2");
  });
  EXPECT_EQ(by_step->info().moe_layers, std::vector<int>{1});
  EXPECT_EQ(by_step->info().layers, 2);
}

TEST(Families, QwenRenormalisesWhenToldTo) {
  const Edited model(testing::kBlock, [](EditableModel& m) {
    m.in_config("\"norm_topk_prob\": true", "\"norm_topk_prob\": false");
  });
  EXPECT_FALSE(model->spec(0).router.renormalise);
}

TEST(Families, DeepseekRenormalisesWhateverTheConfigurationSays) {
  const Edited model(testing::kV4, [](EditableModel& m) {
    m.in_config("\"norm_topk_prob\": true", "\"norm_topk_prob\": false");
  });
  EXPECT_TRUE(model->spec(0).router.renormalise);
  EXPECT_TRUE(model.notes("norm_topk_prob is false"));
}

TEST(Families, DeepseekWithoutExpertDtypeIsFp4) {
  const Edited model(testing::kV4, [](EditableModel& m) { m.in_config("\"expert_dtype\": \"fp4\",", ""); });
  EXPECT_EQ(model->spec(1).routed.formats.up.str(), "mxfp4");
}

TEST(Families, DeepseekTableMayBeInt32) {
  const Edited model(testing::kV4, [](EditableModel& m) {
    testing::NamedTensor& table = m.tensor("layers.0.ffn.gate.tid2eid");
    std::vector<std::byte> narrow;
    for (std::size_t i = 0; i < table.bytes.size(); i += 8)
      narrow.insert(narrow.end(), table.bytes.begin() + static_cast<std::ptrdiff_t>(i),
                    table.bytes.begin() + static_cast<std::ptrdiff_t>(i) + 4);
    table.bytes = narrow;
    table.dtype = DType::i32;
  });
  const auto wide = Checkpoint::open(std::string(SLUICE_SOURCE_DIR) + "/tests/data/fixtures/" + testing::kV4);
  EXPECT_EQ(model->weights(0).router.table, wide.weights(0).router.table);
}

TEST(Families, DeepseekUnderTheNamesOfTransformers) {
  const Edited model(testing::kV4Base, [](EditableModel& m) {
    const std::pair<std::string, std::string> renames[] = {{"layers.", "model.layers."},
                                                           {".ffn.", ".mlp."},
                                                           {".w1.", ".gate_proj."},
                                                           {".w3.", ".up_proj."},
                                                           {".w2.", ".down_proj."},
                                                           {".scale", ".weight_scale_inv"},
                                                           {"gate.bias", "gate.e_score_correction_bias"}};
    m.index.clear();
    for (auto& [file, tensors] : std::exchange(m.files, {}))
      for (auto& tensor : tensors) {
        for (const auto& [from, to] : renames)
          if (tensor.name.find(from) != std::string::npos && !tensor.name.starts_with("model." + from))
            EditableModel::replace(tensor.name, from, to);
        m.files["model.safetensors"].push_back(std::move(tensor));
      }
  });
  EXPECT_EQ(model->spec(1).routed.formats.down.str(), "fp8_block128");
  EXPECT_TRUE(model->weights(1).router.selection_bias);
  EXPECT_EQ(model->weights(0).router.table.size(), 96u);
}

/// Reports B102 and B107: modules are ignored by their names and by expressions, and then their experts are
/// stored otherwise than the others of their layer.
TEST(Schemes, IgnoredExpertsAreReadAsTheyAreStored) {
  const testing::TemporaryDirectory directory;
  EditableModel::of_sample("qwen3-moe-ignored").write(directory.path());
  const Checkpoint model = Checkpoint::open(directory.path().string());
  EXPECT_EQ(storage_text(model.spec(0).routed), "mxfp4; experts 1: bf16; experts 5: mxfp4/mxfp4/bf16");
  EXPECT_EQ(storage_text(model.spec(1).routed), "mxfp4; experts 1, 6-7: bf16");
  for (const int layer : {0, 1}) EXPECT_NO_THROW(validate(model.spec(layer), model.weights(layer)));
  EXPECT_EQ(model.weights(0).routed[1].up.format.str(), "bf16");
  EXPECT_EQ(model.weights(0).routed[5].down.format.str(), "bf16");
  EXPECT_EQ(model.weights(0).routed[5].up.format.str(), "mxfp4");
}

/// A group for a class of modules, listed first, does not hide one that names some of them.
TEST(Schemes, NamesDecideBeforeClasses) {
  const Edited model(testing::kNvfp4, [](EditableModel& m) {
    m.in_config("\"Linear\"", "\"re:.*experts.*\"");
    m.in_config("\"config_groups\": {",
                R"("config_groups": {"all": {"targets": ["Linear"], "format": "mxfp4-pack-quantized",
                "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}},)");
  });
  EXPECT_EQ(storage_text(model->spec(0).routed), "nvfp4");
}

TEST(Schemes, ContainersAreInterchangeable) {
  // FP4 bytes as U8 or I8, powers of two as U8 or F8_E8M0.
  const Edited deepseek(testing::kV4, [](EditableModel& m) {
    for (auto& [file, tensors] : m.files)
      for (auto& tensor : tensors) {
        if (tensor.dtype == DType::i8) tensor.dtype = DType::u8;
        if (tensor.dtype == DType::f8_e8m0) tensor.dtype = DType::u8;
      }
  });
  EXPECT_NO_THROW(deepseek->weights(2));
  const Edited packed(testing::kMxfp4, [](EditableModel& m) {
    for (auto& tensor : m.files["model.safetensors"]) {
      if (tensor.name.ends_with("_packed")) tensor.dtype = DType::i8;
      if (tensor.name.ends_with("_scale")) tensor.dtype = DType::f8_e8m0;
    }
  });
  EXPECT_NO_THROW(packed->weights(0));
}

TEST(Schemes, ModeloptInItsOwnFile) {
  const char* const kOwn = R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4",
      "group_size": 16, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*mlp.gate"]}})";
  const auto as_modelopt = [=](EditableModel& m) {
    m.in_config("\"quantization_config\"", "\"unused\"");
    for (auto& tensor : m.files["model.safetensors"]) {
      if (tensor.name.ends_with("_packed")) EditableModel::replace(tensor.name, "weight_packed", "weight");
      if (tensor.name.ends_with("_global_scale"))
        EditableModel::replace(tensor.name, "weight_global_scale", "weight_scale_2");
    }
    m.finally = [=](const auto& directory) { testing::write_file(directory / "hf_quant_config.json", kOwn); };
  };
  const Edited model(testing::kNvfp4, as_modelopt);
  EXPECT_EQ(model->info().quantisation, "modelopt NVFP4");
  // The same number multiplies here and divides in compressed-tensors.
  const Edited original(testing::kNvfp4, [](EditableModel&) {});
  EXPECT_FLOAT_EQ(
      model->weights(0).routed[1].up.second_scale * original->weights(0).routed[1].up.second_scale, 1);
}

TEST(Schemes, TensorChannelAndMx) {
  const Edited tensor(testing::kChannel, [](EditableModel& m) {
    m.in_config("\"channel\"", "\"tensor\"");
    for (auto& one : m.files["model.safetensors"])
      if (one.name.ends_with("_scale")) {
        one.shape = {1};
        one.bytes.resize(4);
      }
  });
  EXPECT_EQ(tensor->spec(0).routed.formats.up.str(), "fp8_tensor");
  EXPECT_NO_THROW(tensor->weights(0));
  const Edited mx(testing::kChannel, [](EditableModel& m) {
    m.in_config("\"float-quantized\"", "\"mxfp8-quantized\"");
    m.in_config("\"channel\"", "\"group\"");
    for (auto& one : m.files["model.safetensors"])
      if (one.name.ends_with("_scale")) {
        const std::int64_t cols = one.shape[0] == 256 ? 128 : 256;
        one.shape = {one.shape[0], cols / 32};
        one.dtype = DType::u8;
        one.bytes.assign(static_cast<std::size_t>(one.shape[0] * one.shape[1]), std::byte{120});
      }
  });
  EXPECT_EQ(mx->spec(0).routed.formats.down.str(), "mxfp8");
  EXPECT_NO_THROW(mx->weights(0));
}

TEST(Schemes, ModulesThatAreNotConvertedArePlain) {
  // The shared expert of layer 1 in BF16 while the others stay FP8.
  const Edited model(testing::kV4, [](EditableModel& m) {
    m.in_config("\"quant_method\"",
                "\"modules_to_not_convert\": [\"layers.1.ffn.shared_experts\"], \"quant_method\"");
    for (auto& [file, tensors] : m.files)
      for (auto& tensor : tensors)
        if (tensor.name.starts_with("layers.1.ffn.shared_experts.") && tensor.name.ends_with(".weight")) {
          tensor.dtype = DType::bf16;
          tensor.bytes.assign(tensor.bytes.size() * 2, std::byte{0});
        }
    for (const char* matrix : {"w1", "w2", "w3"}) {
      const std::string scale = std::string("layers.1.ffn.shared_experts.") + matrix + ".scale";
      m.remove(scale);
      const std::string listed = "\"" + scale + "\"";
      const std::size_t at = m.index.find(listed);
      m.index.erase(at, m.index.find(',', at) + 1 - at);
    }
  });
  EXPECT_EQ(model->spec(0).shared->experts.formats.up.str(), "fp8_block128");
  EXPECT_EQ(model->spec(1).shared->experts.formats.up.str(), "bf16");
  EXPECT_EQ(model->spec(1).routed.formats.up.str(), "mxfp4");
}

TEST(Notes, TensorsOutsideTheIndexAndCodeOfTheModel) {
  const Edited model(testing::kBlock, [](EditableModel& m) {
    m.add({"leftover.weight", DType::u8, {3}, std::vector<std::byte>(3)});
    m.in_config("\"hidden_act\"", "\"auto_map\": {\"AutoModel\": \"evil.py\"}, \"hidden_act\"");
  });
  EXPECT_TRUE(model.notes("1 tensors lie in shards and not in the index"));
  EXPECT_TRUE(model.notes("leftover.weight"));
  EXPECT_TRUE(model.notes("auto_map; code of a model is never run"));
  EXPECT_EQ(model->info().tensors, 50);
}

bool rule_matches(const char* rule, std::string_view module) {
  return checkpoint::ModuleRules({rule}, "config.json").match(module);
}

TEST(ModuleRules, NamesAreWholeComponents) {
  const std::string_view module = "model.layers.3.mlp.experts.11.gate_proj";
  for (const char* rule : {"model.layers.3.mlp.experts.11.gate_proj", "model.layers.3.mlp", "mlp.experts",
                           "gate_proj", "experts", "model"})
    EXPECT_TRUE(rule_matches(rule, module)) << rule;
  for (const char* rule :
       {"gate", "model.layers.3.mlp.gate", "model.layers.3.mlp.experts.1", "layers.3.ml", "lm_head", ""})
    EXPECT_FALSE(rule_matches(rule, module)) << rule;
}

TEST(ModuleRules, StarsStandForAnything) {
  const std::string_view module = "model.layers.3.mlp.experts.11.gate_proj";
  for (const char* rule :
       {"model.layers.*.mlp", "*experts*", "*", "model.layers.3.*", "*gate_proj", "*.11.*"})
    EXPECT_TRUE(rule_matches(rule, module)) << rule;
  for (const char* rule :
       {"model.layers.*.self_attn", "layers.*.mlp", "*gate", "*shared_experts*", "model.layers.3*x"})
    EXPECT_FALSE(rule_matches(rule, module)) << rule;
}

TEST(ModuleRules, ExpressionsMatchFromTheStart) {
  const std::string_view module = "model.layers.3.mlp.gate";
  for (const char* rule : {"re:.*gate$", "re:.*mlp.gate", "re:model", "re:.*\\.(gate|router)$",
                           "re:.*layers\\.[0-3]\\.mlp.*", "re:^model\\.layers\\.\\d+\\.mlp\\.[a-z_]+$",
                           "re:(?!.*expert).*", "re:.*(?=gate).*", "re:(a|model)+?", "re:[^x]*$", "re:"})
    EXPECT_TRUE(rule_matches(rule, module)) << rule;
  for (const char* rule : {"re:gate", "re:.*gates", "re:.*gate_proj$", "re:mlp", "re:.*layers\\.[4-9]\\..*",
                           "re:(?!.*gate).*", "re:.*lm_head.*", "re:a+model", "re:$"})
    EXPECT_FALSE(rule_matches(rule, module)) << rule;
}

TEST(ModuleRules, ExpressionsThatExplodeElsewhereAreQuickHere) {
  const std::string text(1000, 'a');
  for (const char* expression : {"(a*)*b", "(a|a)*b", "(a+)+$x", "((a?)*)*b", "(.*)*(.*)*(.*)*b"})
    EXPECT_FALSE(checkpoint::Pattern(expression, "config.json").matches_start(text)) << expression;
}

TEST(ModuleRules, ExpressionsThatMakeNoSenseAreRefused) {
  for (const char* expression : {"(",    ")",       "(a",
                                 "[a",   "a)",      "*a",
                                 "a**",  "a{2}{3}", "{2}",
                                 "a{2",  "a{3,2}",  "a{,}",
                                 "a{x}", "a{1000}", "((a{99}){99}){99}",
                                 "\\",   "(?<=a)b", "(?i)a",
                                 "\\1",  "[z-a]",   "(?=(?=(?=a)))"})
    EXPECT_THROW(checkpoint::Pattern(expression, "config.json"), Error) << expression;
  EXPECT_THROW(checkpoint::Pattern(std::string(40, '('), "config.json"), Error);
  EXPECT_THROW(checkpoint::Pattern(std::string(2000, 'a'), "config.json"), Error);
}

}  // namespace
}  // namespace sluice
