// SPDX-License-Identifier: Apache-2.0
// Which module is in which scheme, as the authors of each method define it: what their code does with a list
// or a group is asserted of names, without files.
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/config.h"
#include "checkpoint/module_rules.h"
#include "checkpoint/quantisation.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using namespace checkpoint;

const std::string kFile = "config.json";
constexpr const char* kUnread = "one that is not read";

/// The scheme of each module that is asked for, by name.
class Schemes {
 public:
  explicit Schemes(const std::string& quantisation)
      : json_(parse_json("{\"quantization_config\": " + quantisation + "}", kFile)),
        read_(read_quantisation(Config(json_, kFile))) {}
  const std::string& operator[](const std::string& module) const { return read_.of(module).name; }

 private:
  Json json_;
  Quantisation read_;
};

std::string expert(int layer, int number, const std::string& matrix) {
  return "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(number) + "." + matrix;
}

bool matches(const char* rule, Matching matching, std::string_view module) {
  return ModuleRules({rule}, kFile, matching).match(module);
}

// transformers: fp8, mxfp8, mxfp4, awq.

TEST(Subtrees, AStarOrADotAtTheEndIsNoMoreThanTheName) {
  for (const char* rule :
       {"model.layers.1", "model.layers.1*", "model.layers.1.*", "model.layers.1.", "layers.1*"}) {
    EXPECT_TRUE(matches(rule, Matching::subtrees, expert(1, 0, "up_proj"))) << rule;
    EXPECT_FALSE(matches(rule, Matching::subtrees, expert(10, 0, "up_proj"))) << rule;
  }
  EXPECT_TRUE(matches("*", Matching::subtrees, expert(10, 0, "up_proj")));
}

TEST(Subtrees, CharactersOfExpressionsMakeOne) {
  for (const char* rule : {"model.layers.(0|1).mlp", "model[.]layers[.][01][.]", ".*experts.\\d+.up_proj$"})
    EXPECT_TRUE(matches(rule, Matching::subtrees, expert(1, 0, "up_proj"))) << rule;
  EXPECT_FALSE(matches("layers.(0|1)", Matching::subtrees, expert(1, 0, "up_proj"))) << "from the start";
}

// ModelOpt.

TEST(Wildcards, AreThoseOfFnmatch) {
  const std::string module = expert(1, 12, "up_proj");
  for (const char* rule : {"model.layers.1*", "*.experts.1?.*", "*experts.[0-3]2.up_proj", "*experts.[!a]*",
                           "model.layers.?.mlp", "mlp.experts", "model.layers.1"})
    EXPECT_TRUE(matches(rule, Matching::wildcards, module)) << rule;
  for (const char* rule : {"layers.1*", "*.experts.?.*", "*experts.[2-3]2.up_proj", "*experts.[!1]*", "*up",
                           "model.layers.[", "*mlp.gate*"})
    EXPECT_FALSE(matches(rule, Matching::wildcards, module)) << rule;
  EXPECT_TRUE(matches("model.layers.1*", Matching::wildcards, expert(10, 0, "up_proj")));
}

TEST(Modelopt, NearestNamesDecideInMixedPrecision) {
  const Schemes schemes(R"({"quant_method": "modelopt", "quant_algo": "mixed_precision",
      "exclude_modules": ["*experts.5*", "lm_head"],
      "quantized_layers": {"model.layers.0.self_attn.q_proj": {"quant_algo": "W4A8_AWQ"},
                           "model.layers.0.mlp.experts": {"quant_algo": "nvfp4", "group_size": 16},
                           "model.layers.0.mlp.experts.3.down_proj": {"quant_algo": "FP8"},
                           "language_model.model.layers.1.mlp.experts": {"quant_algo": "MXFP8"},
                           "model.layers.2.mlp.experts": {"quant_algo": "W4A8_AWQ"}}})");
  EXPECT_EQ(schemes[expert(0, 3, "up_proj")], "NVFP4");
  EXPECT_EQ(schemes[expert(0, 3, "down_proj")], "FP8");
  EXPECT_EQ(schemes[expert(0, 5, "down_proj")], schemes::kPlain.name);
  EXPECT_EQ(schemes[expert(1, 0, "up_proj")], schemes::kPlain.name) << "it is not listed";
  EXPECT_EQ(schemes["model.language_model.layers.1.mlp.experts.0.up_proj"], schemes::kFloatMxfp8.name);
  EXPECT_EQ(schemes[expert(2, 0, "up_proj")], kUnread);
}

TEST(Modelopt, TheObjectOfItsOwnFileMayStandInTheConfiguration) {
  const Schemes schemes(R"({"quant_method": "modelopt",
      "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["model.layers.0*"]}})");
  EXPECT_EQ(schemes[expert(0, 0, "up_proj")], schemes::kPlain.name);
  EXPECT_EQ(schemes[expert(1, 0, "up_proj")], "NVFP4");
}

// compressed-tensors.

std::string group(const std::string& targets, const std::string& format, const std::string& weights) {
  return "{\"targets\": [" + targets + "], \"format\": \"" + format + "\", \"weights\": " + weights + "}";
}

const std::string kFp8 = R"({"num_bits": 8, "type": "float", "strategy": "channel"})";
const std::string kMxfp4 = R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32})";
const std::string kInt4 = R"({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128})";

Schemes compressed(const std::string& ignore, const std::string& groups) {
  return Schemes(R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": [)" +
                 ignore + "], \"config_groups\": {" + groups + "}}");
}

TEST(CompressedTensors, ANameIsThatModuleAndNoneBelow) {
  const Schemes schemes =
      compressed(R"("model.layers.0.mlp.experts.1", "model.layers.0.mlp.experts.2.up_proj", "gate_proj",
                    "re:model.layers.1.*", "model.layers.2.mlp.experts")",
                 "\"a\": " + group("\"Linear\"", "float-quantized", kFp8));
  EXPECT_EQ(schemes[expert(0, 1, "up_proj")], schemes::kFloatChannel.name);
  EXPECT_EQ(schemes[expert(0, 2, "up_proj")], schemes::kPlain.name);
  EXPECT_EQ(schemes[expert(0, 2, "gate_proj")], schemes::kFloatChannel.name);
  EXPECT_EQ(schemes[expert(1, 2, "gate_proj")], schemes::kPlain.name);
  EXPECT_EQ(schemes["model.layers.2.mlp.experts.gate_up_proj"], schemes::kPlain.name)
      << "a stack is of its module";
  EXPECT_EQ(schemes[expert(2, 0, "up_proj")], schemes::kFloatChannel.name);
}

TEST(CompressedTensors, AClassMayBeIgnored) {
  EXPECT_EQ(compressed("\"Linear\"",
                       "\"a\": " + group("\"re:.*\"", "float-quantized", kFp8))[expert(0, 0, "up_proj")],
            schemes::kPlain.name);
}

/// Names, then expressions in order of their letters, then classes; the groups' order counts only where the
/// same target stands in two.
TEST(CompressedTensors, WhichGroupDecides) {
  const Schemes schemes = compressed(
      "", "\"z\": " + group("\"Linear\", \"re:.*up_proj\"", "float-quantized", kFp8) +
              ", \"m\": " + group("\"re:.*[.]3[.].*\"", "mxfp4-pack-quantized", kMxfp4) + ", \"a\": " +
              group("\"model.layers.0.mlp.experts.3.down_proj\", \"re:.*up_proj\"", "pack-quantized", kInt4));
  EXPECT_EQ(schemes[expert(0, 0, "gate_proj")], schemes::kFloatChannel.name) << "by class";
  EXPECT_EQ(schemes[expert(0, 0, "up_proj")], "pack-quantized int4 g128")
      << "the last group with this target";
  EXPECT_EQ(schemes[expert(0, 3, "up_proj")], schemes::kPackedMxfp4.name) << "'[' comes before 'u'";
  EXPECT_EQ(schemes[expert(0, 3, "gate_proj")], schemes::kPackedMxfp4.name);
  EXPECT_EQ(schemes[expert(0, 3, "down_proj")], "pack-quantized int4 g128") << "by name";
}

TEST(CompressedTensors, GroupsOfOtherModulesNeedNotBeKnown) {
  const std::string int8 = R"({"num_bits": 8, "type": "int", "strategy": "channel"})";
  const Schemes schemes =
      compressed("", "\"a\": " + group("\"re:.*self_attn.*\"", "int-quantized", int8) +
                         ", \"b\": " + group("\"re:.*experts.*\"", "float-quantized", kFp8) +
                         R"(, "c": {"targets": ["re:.*gate$"], "weights": null})");
  EXPECT_EQ(schemes[expert(0, 0, "up_proj")], schemes::kFloatChannel.name);
  EXPECT_EQ(schemes["model.layers.0.self_attn.q_proj"], kUnread);
  EXPECT_EQ(schemes["model.layers.0.mlp.gate"], schemes::kPlain.name);
  EXPECT_EQ(schemes["model.layers.0.mlp.up_proj"], schemes::kPlain.name) << "no group targets it";
}

// GPTQModel.

TEST(GptqModel, TheFirstThatTheFileHasDecides) {
  const Schemes schemes(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "dynamic": {
      "-:.*experts[.]0[.].*": {}, "+:.*up_proj": {"bits": 8}, ".*experts[.][0-3][.].*": {"group_size": 32, "desc_act": true},
      "+:.*experts[.]3[.].*": {"bits": 2}, "+:.*self_attn.*": {"bits": 5}, "+:.*shared.*": {"format": "marlin"}}})");
  EXPECT_EQ(schemes[expert(0, 0, "up_proj")], schemes::kPlain.name);
  EXPECT_EQ(schemes[expert(0, 1, "up_proj")], "gptq int8 g128");
  EXPECT_EQ(schemes[expert(0, 3, "down_proj")], "gptq int4 g32, act-order");
  EXPECT_EQ(schemes[expert(0, 4, "down_proj")], "gptq int4 g128");
  EXPECT_EQ(schemes["model.layers.0.self_attn.q_proj"], kUnread);
  EXPECT_EQ(schemes["model.layers.0.mlp.shared_expert.down_proj"], kUnread);
}

// AutoRound.

TEST(AutoRound, WholeNamesThenExpressionsAsTheFileHasThem) {
  const Schemes schemes(R"({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4,
      "group_size": 128, "sym": true, "extra_config": {
      "up_proj": {"bits": 8}, ".*experts.*": {}, "experts.3": {"bits": 16},
      "model.layers.0.mlp.experts.3.up_proj": {"bits": 2}, "self_attn": {"data_type": "mx_fp", "bits": 4}}})");
  EXPECT_EQ(schemes[expert(0, 0, "up_proj")], "gptq int8 g128") << "an expression may match anywhere";
  EXPECT_EQ(schemes[expert(0, 3, "up_proj")], "gptq int2 g128") << "its own name";
  EXPECT_EQ(schemes[expert(1, 3, "up_proj")], "gptq int8 g128") << "the first expression";
  EXPECT_EQ(schemes[expert(1, 3, "down_proj")], schemes::kPlain.name);
  EXPECT_EQ(schemes[expert(1, 30, "down_proj")], schemes::kPlain.name) << "re.search knows no components";
  EXPECT_EQ(schemes[expert(1, 1, "down_proj")], "gptq int4 g128") << "an empty override says nothing";
  EXPECT_EQ(schemes["model.layers.0.self_attn.q_proj"], kUnread);
}

// Expressions.

bool expression(const char* text, std::string_view module) {
  return Pattern(text, kFile).matches_start(module);
}

TEST(Expressions, CountsAndEdgesOfWords) {
  for (const char* text : {"a{3}$", "a{2}a$", "a{1,3}$", "a{,3}$", "a{2,}$", "a{0}aaa$", "(?:aa?){2}$",
                           "a{3}?$", "(a{1,2}){2}$", "\\baaa\\b", "a\\Ba", "(?!.*b)a{3}"})
    EXPECT_TRUE(expression(text, "aaa")) << text;
  for (const char* text : {"a{2}$", "a{4}", "a{4,}", "a{,2}$", "aaa\\Ba", "a\\ba", "a{0}$"})
    EXPECT_FALSE(expression(text, "aaa")) << text;
  EXPECT_TRUE(expression(".*layers\\.\\d{1,2}\\.mlp\\b", expert(12, 0, "up_proj")));
  EXPECT_FALSE(expression(".*layers\\.\\d{1}\\.mlp", expert(12, 0, "up_proj")));
}

}  // namespace
}  // namespace sluice
