// SPDX-License-Identifier: Apache-2.0
// GGUF files: one written by the public gguf package computes what the same weights in safetensors do; small
// ones written here are read as their keys say; and damaged ones are refused, each with its own code.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "editable_model.h"
#include "format/geometry.h"
#include "sluice/checkpoint.h"
#include "sluice/error.h"
#include "sluice/layer.h"
#include "testing/draw.h"
#include "testing/gguf_model.h"
#include "testing/gguf_writer.h"
#include "testing/rounding.h"
#include "testing/usable_backends.h"

namespace sluice {
namespace {

using testing::GgufWriter;

constexpr std::uint32_t kF32 = 0, kQ8_0 = 8;
constexpr int kHidden = 64, kWide = 32, kExperts = 4;

/// `rows` rows of F32, small and all different.
std::string floats(std::uint64_t count) {
  std::string bytes;
  for (std::uint64_t i = 0; i < count; ++i)
    bytes += GgufWriter::raw(0.01f * static_cast<float>(i % 97) - 0.4f);
  return bytes;
}

void add(GgufWriter& file, const std::string& name, std::vector<std::uint64_t> ne) {
  std::uint64_t count = 1;
  for (const std::uint64_t size : ne) count *= size;
  file.tensors.push_back({.name = name, .type = kF32, .ne = std::move(ne), .bytes = floats(count)});
}

void add_q8(GgufWriter& file, const std::string& name, std::vector<std::uint64_t> ne) {
  std::string bytes;
  for (std::uint64_t i = 0; i < ne[0] * ne[1] * ne[2] / 32; ++i)
    bytes += GgufWriter::raw(std::uint16_t{0x2400}) + std::string(32, static_cast<char>(i % 100));
  file.tensors.push_back({.name = name, .type = kQ8_0, .ne = std::move(ne), .bytes = bytes});
}

GgufWriter base(const std::string& arch) {
  GgufWriter file;
  file.add_text("general.architecture", arch);
  file.add_u32(arch + ".block_count", 1);
  file.add_u32(arch + ".embedding_length", kHidden);
  file.add_u32(arch + ".feed_forward_length", kWide);
  file.add_u32(arch + ".expert_feed_forward_length", kWide);
  file.add_u32(arch + ".expert_count", kExperts);
  file.add_u32(arch + ".expert_used_count", 2);
  add(file, "blk.0.ffn_gate_inp.weight", {kHidden, kExperts});
  add_q8(file, "blk.0.ffn_gate_exps.weight", {kHidden, kWide, kExperts});
  add_q8(file, "blk.0.ffn_up_exps.weight", {kHidden, kWide, kExperts});
  add_q8(file, "blk.0.ffn_down_exps.weight", {kWide, kHidden, kExperts});
  add(file, "blk.0.ffn_norm.weight", {kHidden});
  return file;
}

void add_shared(GgufWriter& file, int wide) {
  const auto width = static_cast<std::uint64_t>(wide);
  for (const char* name : {"blk.0.ffn_gate_shexp.weight", "blk.0.ffn_up_shexp.weight"})
    add(file, name, {kHidden, width});
  add(file, "blk.0.ffn_down_shexp.weight", {width, kHidden});
}

GgufWriter deepseek() {
  GgufWriter file = base("deepseek2");
  file.add_u32("deepseek2.expert_gating_func", 2);
  file.add_flag("deepseek2.expert_weights_norm", true);
  file.add_f32("deepseek2.expert_weights_scale", 2.5f);
  file.add_u32("deepseek2.expert_shared_count", 2);
  file.add_u32("deepseek2.expert_group_count", 2);
  file.add_u32("deepseek2.expert_group_used_count", 1);
  add(file, "blk.0.exp_probs_b.bias", {kExperts});
  add_shared(file, 2 * kWide);
  return file;
}

class Written {
 public:
  explicit Written(const GgufWriter& file) { testing::write_file(path(), file.file()); }
  std::string path() const { return directory_.file("model.gguf"); }

 private:
  testing::TemporaryDirectory directory_;
};

Checkpoint open(const GgufWriter& file) { return Checkpoint::open(Written(file).path()); }

/// The code of the Error that `body` throws, or nothing.
template <class Body>
std::string code_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.info().code;
  }
  return "";
}

TEST(Gguf, DeepseekByItsKeys) {
  const Checkpoint model = open(deepseek());
  const LayerSpec spec = model.spec(0);
  EXPECT_EQ(spec.router.score.str(), "sigmoid");
  EXPECT_TRUE(spec.router.renormalise);
  EXPECT_EQ(spec.router.scale, 2.5f);
  EXPECT_TRUE(spec.router.selection_bias);
  EXPECT_EQ(spec.router.groups, 2);
  EXPECT_EQ(spec.router.groups_kept, 1);
  EXPECT_EQ(spec.router.group_score, GroupScore::two_best);
  EXPECT_EQ(spec.shared->experts.intermediate, 2 * kWide);
  EXPECT_EQ(spec.routed.formats.up.str(), "q8_0");
  EXPECT_EQ(spec.shared->experts.formats.up.str(), "f32");
  const LayerWeights weights = model.weights(0);
  EXPECT_NO_THROW(validate(spec, weights));
  // Expert e's block b of the whole stack holds b % 100, times 2^-6.
  float row[kHidden];
  decode_row(weights.routed[3].up, 5, row);
  EXPECT_EQ(row[0], ((3 * kWide + 5) * 2 % 100) / 64.0f);
  EXPECT_EQ(row[63], ((3 * kWide + 5) * 2 % 100 + 1) / 64.0f);
}

TEST(Gguf, DefaultsAreTheArchitectures) {
  EXPECT_TRUE(open(base("qwen3moe")).spec(0).router.renormalise);
  EXPECT_FALSE(open(base("olmoe")).spec(0).router.renormalise);
  EXPECT_EQ(open(base("llama")).spec(0).router.score.str(), "softmax");
  EXPECT_TRUE(open(base("llama")).spec(0).router.renormalise);
  GgufWriter llama4 = base("llama4");
  add_shared(llama4, kWide);
  const LayerSpec spec = open(llama4).spec(0);
  EXPECT_TRUE(spec.routed.weight_on_input);
  EXPECT_EQ(spec.router.score.str(), "sigmoid_selected");
  std::string said;
  const Checkpoint qwen = open(base("qwen3moe"));
  for (const std::string& note : qwen.info().notes) said += note + "\n";
  EXPECT_NE(said.find("qwen3moe.expert_weights_norm is not in the file; true"), said.npos) << said;
}

/// What llama.cpp's src/models have for files without the keys of the router.
struct Default {
  const char* architecture;
  const char* score;
  bool renormalise, selection_bias, gated_shared = false;
};

constexpr Default kDefaults[] = {
    {"qwen2moe", "softmax", false, false, true}, {"qwen3moe", "softmax", true, false},
    {"qwen3next", "softmax", true, false, true}, {"qwen35moe", "softmax", true, false, true},
    {"olmoe", "softmax", false, false},          {"granitemoe", "softmax", true, false},
    {"deepseek", "softmax", false, false},       {"deepseek2", "softmax", false, false},
    {"ernie4_5-moe", "softmax", true, true},     {"glm4moe", "sigmoid", false, true},
    {"glm-dsa", "sigmoid", false, true},         {"step35", "sigmoid", false, true},
};

TEST(Gguf, RoutersWithoutTheirKeys) {
  for (const Default& one : kDefaults) {
    GgufWriter file = base(one.architecture);
    if (one.selection_bias) add(file, "blk.0.exp_probs_b.bias", {kExperts});
    if (one.gated_shared) {
      add_shared(file, kWide);
      add(file, "blk.0.ffn_gate_inp_shexp.weight", {kHidden});
    }
    const RouterSpec router = open(file).spec(0).router;
    EXPECT_EQ(router.score.str(), one.score) << one.architecture;
    EXPECT_EQ(router.renormalise, one.renormalise) << one.architecture;
    EXPECT_EQ(router.selection_bias, one.selection_bias) << one.architecture;
  }
  for (const char* needs_keys : {"minimax-m2", "bailingmoe2", "dots1", "deepseek32"})
    EXPECT_EQ(code_of([&] { open(base(needs_keys)); }), "gguf_missing_key") << needs_keys;
}

/// Its limit has no default: a file without one is refused, as llama.cpp does.
TEST(Gguf, Deepseek4ByItsKeys) {
  GgufWriter file = base("deepseek4");
  file.add_u32("deepseek4.expert_gating_func", 4);
  file.add_flag("deepseek4.expert_weights_norm", true);
  file.add_f32("deepseek4.expert_weights_scale", 1.5f);
  file.add_u32("deepseek4.expert_shared_count", 1);
  file.add_u32("deepseek4.hash_layer_count", 0);
  add(file, "blk.0.exp_probs_b.bias", {kExperts});
  add_shared(file, kWide);
  EXPECT_EQ(code_of([&] { open(file); }), "gguf_missing_key");
  file.add_floats("deepseek4.swiglu_clamp_exp", {10});
  const LayerSpec spec = open(file).spec(0);
  EXPECT_EQ(spec.router.score.str(), "sqrt_softplus");
  EXPECT_EQ(spec.router.scale, 1.5f);
  EXPECT_EQ(spec.routed.activation.str(), "silu");
  EXPECT_EQ(spec.routed.params.limit, 10.0f);
  EXPECT_EQ(spec.shared->experts.params.limit, 10.0f);
}

TEST(Gguf, LimitsOfEveryLayer) {
  GgufWriter step = base("step35");
  step.add_floats("step35.swiglu_clamp_exp", {7});
  step.add_floats("step35.swiglu_clamp_shexp", {0});
  step.add_u32("step35.expert_shared_feed_forward_length", kWide);
  add_shared(step, kWide);
  const LayerSpec spec = open(step).spec(0);
  EXPECT_EQ(spec.routed.activation.str(), "silu_then_clamp");
  EXPECT_EQ(spec.routed.params.limit, 7.0f);
  EXPECT_TRUE(std::isinf(spec.shared->experts.params.limit));
}

TEST(Gguf, MergedGateAndUpAreTheSameAsApart) {
  const GgufWriter apart = base("qwen3moe");
  GgufWriter merged = apart;
  std::string both;
  GgufWriter::Tensor& gate = merged.tensor("blk.0.ffn_gate_exps.weight");
  const std::string up = merged.tensor("blk.0.ffn_up_exps.weight").bytes, gates = gate.bytes;
  const std::size_t one = gates.size() / kExperts;
  for (std::size_t e = 0; e < kExperts; ++e) both += gates.substr(e * one, one) + up.substr(e * one, one);
  gate = {.name = "blk.0.ffn_gate_up_exps.weight",
          .type = kQ8_0,
          .ne = {kHidden, 2 * kWide, kExperts},
          .bytes = both};
  std::erase_if(merged.tensors, [](const auto& tensor) { return tensor.name == "blk.0.ffn_up_exps.weight"; });
  const Written a(apart), b(merged);
  const Checkpoint left = Checkpoint::open(a.path()), right = Checkpoint::open(b.path());
  const LayerWeights x = left.weights(0), y = right.weights(0);
  float want[kHidden], got[kHidden];
  for (std::size_t e = 0; e < kExperts; ++e)
    for (int r = 0; r < kWide; ++r)
      for (const bool of_gate : {true, false}) {
        decode_row(of_gate ? *x.routed[e].gate : x.routed[e].up, r, want);
        decode_row(of_gate ? *y.routed[e].gate : y.routed[e].up, r, got);
        ASSERT_EQ(std::vector<float>(want, want + kHidden), std::vector<float>(got, got + kHidden));
      }
}

/// Every way in which a file can be wrong: what is done to a good one, and the code that it is refused with.
struct Wrong {
  const char* code;
  void (*damage)(GgufWriter&);
};

const Wrong kWrong[] = {
    {"gguf_bad_magic", [](auto& f) { f.magic = "GGML"; }},
    {"gguf_version", [](auto& f) { f.version = 1; }},
    {"gguf_big_endian", [](auto& f) { f.version = 3u << 24; }},
    {"gguf_too_many_tensors", [](auto& f) { f.more_tensors = std::uint64_t{1} << 62; }},
    {"gguf_too_many_tensors", [](auto& f) { f.more_tensors = 999'000; }},
    {"gguf_too_many_keys", [](auto& f) { f.more_keys = std::uint64_t{1} << 63; }},
    {"gguf_bad_value_type", [](auto& f) { f.add("x", GgufWriter::raw(13u)); }},
    {"gguf_nested_array", [](auto& f) { f.add("x", GgufWriter::raw(9u) + GgufWriter::raw(9u)); }},
    {"gguf_truncated",
     [](auto& f) {
       f.add("x", GgufWriter::raw(9u) + GgufWriter::raw(4u) + GgufWriter::raw(std::uint64_t{1} << 62));
     }},
    {"gguf_truncated", [](auto& f) { f.add("x", GgufWriter::raw(8u) + GgufWriter::raw(~std::uint64_t{0})); }},
    {"gguf_bad_flag", [](auto& f) { f.add("x", GgufWriter::raw(7u) + "\2"); }},
    {"gguf_bad_key", [](auto& f) { f.add_u32("\xff", 1); }},
    {"gguf_bad_key", [](auto& f) { f.add_u32("", 1); }},
    {"gguf_duplicate_key", [](auto& f) { f.add_u32("deepseek2.block_count", 1); }},
    {"gguf_bad_alignment", [](auto& f) { f.add_u32("general.alignment", 24); }},
    {"gguf_bad_alignment", [](auto& f) { f.add_u32("general.alignment", 0); }},
    {"gguf_bad_name", [](auto& f) { f.tensors[4].name = "a\nb"; }},
    {"gguf_duplicate_tensor", [](auto& f) { f.tensors[1].name = f.tensors[2].name; }},
    {"gguf_bad_rank",
     [](auto& f) {
       f.tensors[4].ne = {1, 1, 1, 1, 64};
     }},
    {"gguf_bad_rank", [](auto& f) { f.tensors[4].ne = {}; }},
    {"gguf_bad_shape", [](auto& f) { f.tensors[4].ne = {0}; }},
    {"gguf_bad_shape",
     [](auto& f) {
       f.tensors[4].ne = {std::uint64_t{1} << 32, std::uint64_t{1} << 32};
     }},
    {"gguf_unknown_tensor_type", [](auto& f) { f.tensors[4].type = 4; }},
    {"gguf_partial_block", [](auto& f) { f.tensors[1].ne[0] = 33; }},
    {"gguf_misaligned", [](auto& f) { f.tensors[4].offset = 8; }},
    {"gguf_out_of_range", [](auto& f) { f.tensors.back().offset = std::uint64_t{1} << 40; }},
    {"gguf_out_of_range", [](auto& f) { f.tensors.back().bytes.resize(8); }},
    {"gguf_overlap", [](auto& f) { f.tensors[1].offset = 0; }},
    {"gguf_gap", [](auto& f) { f.tensors[0].bytes += std::string(64, 'x'); }},
    {"gguf_missing_key", [](auto& f) { f.remove("general.architecture"); }},
    {"gguf_missing_key", [](auto& f) { f.remove("deepseek2.embedding_length"); }},
    {"gguf_wrong_key_type",
     [](auto& f) {
       f.remove("deepseek2.block_count");
       f.add_f32("deepseek2.block_count", 1);
     }},
    {"gguf_key_out_of_range",
     [](auto& f) {
       f.remove("deepseek2.expert_used_count");
       f.add_u32("deepseek2.expert_used_count", 5);
     }},
    {"gguf_no_experts", [](auto& f) { f.remove("deepseek2.expert_count"); }},
    {"gguf_contradiction",
     [](auto& f) {
       f.remove("deepseek2.expert_group_count");
       f.add_u32("deepseek2.expert_group_count", 3);
     }},
    {"gguf_contradiction", [](auto& f) { f.add_u32("deepseek2.leading_dense_block_count", 1); }},
    {"unknown_router",
     [](auto& f) {
       f.remove("deepseek2.expert_gating_func");
       f.add_u32("deepseek2.expert_gating_func", 9);
     }},
    {"unknown_limit", [](auto& f) { f.add_f32("deepseek2.swiglu_clamp_exp", 7); }},
    {"missing_tensor", [](auto& f) { f.tensors.erase(f.tensors.begin()); }},
    {"unused_tensor", [](auto& f) { add(f, "blk.0.ffn_norm_exps.weight", {kHidden}); }},
    {"gguf_type_not_read",
     [](auto& f) {
       f.tensors[1].type = 20;  // IQ4_NL: 18 bytes for 32
       f.tensors[1].bytes.resize(f.tensors[1].bytes.size() / 34 * 18);
     }},
    {"gguf_wrong_type",
     [](auto& f) {
       f.tensors[0].type = kQ8_0;
       f.tensors[0].bytes.resize(f.tensors[0].bytes.size() / 128 * 34);
     }},
    {"gguf_bad_scale", [](auto& f) { f.tensors[3].bytes[35] = '\x7c'; }},
    {"gguf_scale_without_use",
     [](auto& f) {
       add(f, "blk.0.ffn_up_exps.scale", {1});
       f.tensors.back().bytes = GgufWriter::raw(2.0f);
     }},
    {"gguf_wrong_split", [](auto& f) { f.add_u32("split.count", 2); }},
};

TEST(Gguf, WhatIsWrongIsRefused) {
  EXPECT_NO_THROW(open(deepseek()));
  for (const Wrong& wrong : kWrong) {
    GgufWriter file = deepseek();
    wrong.damage(file);
    const Written written(file);
    try {
      const Checkpoint model = Checkpoint::open(written.path());
      model.weights(0);
      ADD_FAILURE() << wrong.code << ": accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.info().code, wrong.code) << error.what();
      EXPECT_TRUE(error.kind() == ErrorKind::corrupt_file || error.kind() == ErrorKind::unsupported)
          << error.what();
      EXPECT_FALSE(error.info().file.empty()) << error.what();
      EXPECT_FALSE(error.info().todo.empty()) << error.what();
    }
  }
}

/// Every cut of the file is refused, and none crashes.
TEST(Gguf, CutFilesAreRefused) {
  const std::string whole = deepseek().file();
  const testing::TemporaryDirectory directory;
  for (std::size_t size = 0; size < whole.size(); size += size < 2500 ? 7 : 1999) {
    testing::write_file(directory.file("model.gguf"), std::string_view(whole).substr(0, size));
    EXPECT_THROW(Checkpoint::open(directory.file("model.gguf")), Error) << size;
  }
}

/// reports.md, B103: keys and tensors disagree.
TEST(Gguf, B103SaysBothNumbers) {
  GgufWriter file = deepseek();
  file.remove("deepseek2.expert_count");
  file.add_u32("deepseek2.expert_count", 6);
  try {
    open(file);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.info().code, "gguf_wrong_shape");
    EXPECT_NE(error.info().what.find("[64, 4]"), std::string::npos) << error.info().what;
    EXPECT_NE(error.info().what.find("[64, 6]"), std::string::npos) << error.info().what;
  }
}

TEST(Gguf, UnknownArchitecturesNeedTheirKeys) {
  GgufWriter file = base("brandnew");
  try {
    open(file);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.info().code, "gguf_unknown_architecture");
  }
  file.add_u32("brandnew.expert_gating_func", 1);
  file.add_flag("brandnew.expert_weights_norm", true);
  const Checkpoint model = open(file);
  EXPECT_EQ(model.info().family, "gguf");
  EXPECT_NE(model.info().notes.back().find("is not known"), std::string::npos);
  EXPECT_THROW(open(base("gemma4")), Error);
}

TEST(Gguf, SplitFilesAreOne) {
  GgufWriter first = deepseek(), second;
  second.tensors.assign(first.tensors.begin() + 3, first.tensors.end());
  first.tensors.resize(3);
  for (GgufWriter* part : {&first, &second}) {
    part->add_u32("split.count", 2);
    part->add_u32("split.no", part == &first ? 0 : 1);
  }
  const testing::TemporaryDirectory directory;
  const std::string one = directory.file("m-00001-of-00002.gguf"),
                    two = directory.file("m-00002-of-00002.gguf");
  testing::write_file(one, first.file());
  EXPECT_THROW(Checkpoint::open(one), Error);  // a part is missing
  testing::write_file(two, second.file());
  EXPECT_EQ(Checkpoint::open(one).info().files, 2);
  EXPECT_NO_THROW(Checkpoint::open(two).weights(0));
  testing::write_file(two, first.file());
  EXPECT_THROW(Checkpoint::open(one), Error);
}

/// The same weights from safetensors and from GGUF: every matrix, number by number.
TEST(Gguf, GptOssIsWhatItsSafetensorsAre) {
  const Checkpoint gguf = Checkpoint::open(SLUICE_SOURCE_DIR "/tests/data/gguf/gpt-oss-mxfp4.gguf");
  const Checkpoint plain = Checkpoint::open(SLUICE_SOURCE_DIR "/tests/data/fixtures/gpt_oss_mxfp4");
  for (const int layer : {0, 1}) {
    const LayerSpec a = gguf.spec(layer), b = plain.spec(layer);
    EXPECT_EQ(a.routed.formats, b.routed.formats);
    EXPECT_EQ(a.routed.params, b.routed.params);
    EXPECT_EQ(a.router.score, b.router.score);
    EXPECT_EQ(a.router.bias, b.router.bias);
    const LayerWeights x = gguf.weights(layer), y = plain.weights(layer);
    std::vector<float> want(288), got(288);
    for (std::size_t e = 0; e < y.routed.size(); ++e)
      for (std::int64_t r = 0; r < 288; r += 5)
        for (int which = 0; which < 3; ++which) {
          const auto of = [&](const ExpertWeights& expert) {
            return which == 0 ? *expert.gate : which == 1 ? expert.up : expert.down;
          };
          decode_row(of(x.routed[e]), r, got.data());
          decode_row(of(y.routed[e]), r, want.data());
          ASSERT_EQ(got, want);
        }
  }
}

struct Answer {
  std::vector<float> block, weights;
  std::vector<std::int32_t> ids;
};

/// Five tokens through a layer and its own router.
Answer run(const Backend& backend, const LayerSpec& spec, const LayerWeights& weights) {
  constexpr int kTokens = 5;
  const Layer layer(choose({.layer = spec, .device = detect(), .by_name = std::string(backend.name)}),
                    weights);
  const std::vector<float> hidden = testing::Draw(4).normals(kTokens * spec.routed.hidden, 1);
  std::vector<std::byte> workspace(layer.workspace_bytes(kTokens));
  const auto slots = static_cast<std::size_t>(kTokens * spec.routed.top_k);
  Answer answer{std::vector<float>(hidden.size()), std::vector<float>(slots),
                std::vector<std::int32_t>(slots)};
  layer.run({.hidden = {reinterpret_cast<const std::byte*>(hidden.data()), DType::f32, kTokens,
                        spec.routed.hidden, 4 * spec.routed.hidden},
             .block_out = answer.block.data(),
             .topk_ids = answer.ids.data(),
             .topk_weights = answer.weights.data(),
             .workspace = workspace});
  return answer;
}

/// DeepSeek-V3 with groups, a bias that selects, a factor and a shared expert: what the layers compute, on
/// every backend of this machine, from safetensors and from GGUF with the same numbers.
TEST(Gguf, DeepseekComputesWhatItsSafetensorsDo) {
  const testing::TemporaryDirectory directory;
  testing::EditableModel::of_sample("deepseek-v3").write(directory.path());
  const Checkpoint plain = Checkpoint::open(directory.path().string());
  std::vector<testing::GgufLayer> layers;
  for (const int layer : plain.info().moe_layers) layers.push_back({plain.spec(layer), plain.weights(layer)});
  const Checkpoint gguf = open(testing::write_deepseek_gguf(layers, plain.info().moe_layers.front()));
  ASSERT_EQ(gguf.info().moe_layers, plain.info().moe_layers);
  int compared = 0;
  for (const int layer : plain.info().moe_layers)
    for (const Backend* backend : testing::usable_backends()) {
      if (testing::rounding_of(backend->name) != testing::Rounding::none) continue;  // refuses these formats
      const Answer want = run(*backend, plain.spec(layer), plain.weights(layer)),
                   got = run(*backend, gguf.spec(layer), gguf.weights(layer));
      EXPECT_EQ(got.ids, want.ids) << backend->name;
      for (std::size_t i = 0; i < want.weights.size(); ++i)
        EXPECT_NEAR(got.weights[i], want.weights[i], 1e-6) << backend->name;
      double error = 0, norm = 0;
      for (std::size_t i = 0; i < want.block.size(); ++i) {
        error += std::pow(double{got.block[i]} - want.block[i], 2);
        norm += std::pow(double{want.block[i]}, 2);
      }
      EXPECT_GT(norm, 0) << backend->name;
      EXPECT_LT(std::sqrt(error / norm), 1e-6) << backend->name << ", layer " << layer;
      ++compared;
    }
  EXPECT_GE(compared, 2);
}

TEST(Gguf, EveryCodeIsDocumented) {
  const std::string docs = testing::read_file(SLUICE_SOURCE_DIR "/docs/checkpoints.md");
  for (const Wrong& wrong : kWrong)
    EXPECT_NE(docs.find("`" + std::string(wrong.code) + "`"), docs.npos) << wrong.code;
}

}  // namespace
}  // namespace sluice
