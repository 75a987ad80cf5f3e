// SPDX-License-Identifier: Apache-2.0
// Section K of the reports: reading checkpoints.
#include <algorithm>
#include <cstring>

#include "sluice/error.h"
#include "testing/drawn_layer.h"
#include "testing/gguf_writer.h"
#include "tests/reports/model.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

using testing::EditableModel;
using testing::NamedTensor;

/// Row `row` of a matrix.
std::vector<float> row_of(const WeightMatrix& matrix, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(matrix.cols));
  decode_row(matrix, row, values.data());
  return values;
}

void expect_equal(const LayerWeights& got, const LayerWeights& want) {
  ASSERT_EQ(got.routed.size(), want.routed.size());
  for (std::size_t e = 0; e < got.routed.size(); ++e) {
    const ExpertWeights &one = got.routed[e], &other = want.routed[e];
    for (std::int64_t r = 0; r < one.up.rows; ++r) {
      ASSERT_EQ(row_of(*one.gate, r), row_of(*other.gate, r)) << "gate of expert " << e << ", row " << r;
      ASSERT_EQ(row_of(one.up, r), row_of(other.up, r)) << "up of expert " << e << ", row " << r;
    }
    for (std::int64_t r = 0; r < one.down.rows; ++r)
      ASSERT_EQ(row_of(one.down, r), row_of(other.down, r)) << "down of expert " << e << ", row " << r;
  }
}

TEST(Reports, B98_TheIndexAndTheShardsAgree) {
  EXPECT_EQ(refused(
                [] {
                  Edited(fixture("qwen3_moe_fp8_block"),
                         [](auto& m) { m.files.erase("model-00001-of-00002.safetensors"); });
                },
                {"model-00001-of-00002.safetensors"}),
            "missing_shard");
  EXPECT_EQ(refused(
                [] {
                  Edited(fixture("qwen3_moe_fp8_block"), [](auto& m) {
                    m.in_index("\"weight_map\": {",
                               "\"weight_map\": {\"stale\": \"model-00002-of-00002.safetensors\",");
                  });
                },
                {"stale", "model-00002-of-00002.safetensors"}),
            "index_names_missing_tensor");
  const NamedTensor extra{"extra.weight", DType::u8, {3}, std::vector<std::byte>(3)};
  const Edited noted(fixture("qwen3_moe_fp8_block"), [&](auto& m) { m.add(extra); });
  EXPECT_TRUE(noted.notes("not in the index, and are left out"));
  // A parameter that no file has is an error, and not what the memory held.
  EXPECT_EQ(refused(
                [] {
                  Edited(fixture("mixtral_bf16"),
                         [](auto& m) { m.remove("model.layers.0.block_sparse_moe.experts.1.w3.weight"); });
                },
                {"experts.1.w3.weight"}),
            "missing_tensor");
}

/// The sample's stacks taken apart: rows [0, I) of gate_up are gate's, the others up's.
EditableModel taken_apart(EditableModel model) {
  for (auto& [file, tensors] : model.files) {
    std::vector<NamedTensor> apart;
    for (NamedTensor& tensor : tensors) {
      const bool both = tensor.name.ends_with(".gate_up_proj");
      if (!both && !tensor.name.ends_with("experts.down_proj")) {
        apart.push_back(std::move(tensor));
        continue;
      }
      const std::string stem = tensor.name.substr(0, tensor.name.rfind('.') + 1);
      const std::int64_t parts = both ? 2 : 1, rows = tensor.shape[1] / parts;
      const std::size_t bytes = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0] * parts);
      for (std::int64_t i = 0; i < tensor.shape[0] * parts; ++i) {
        const char* matrix = !both ? "down_proj" : i % 2 == 0 ? "gate_proj" : "up_proj";
        const auto first = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(bytes) * i;
        apart.push_back({stem + std::to_string(i / parts) + "." + matrix + ".weight",
                         tensor.dtype,
                         {rows, tensor.shape[2]},
                         {first, first + static_cast<std::ptrdiff_t>(bytes)}});
      }
    }
    tensors = std::move(apart);
  }
  return model;
}

TEST(Reports, B100_StacksAreReadLikeSingleExperts) {
  const Edited stacked(sample("qwen3.5-moe")), apart(taken_apart(sample("qwen3.5-moe")));
  for (const int layer : {0, 1}) expect_equal(stacked->weights(layer), apart->weights(layer));
  // Stored [inputs, outputs], a transposed stack is another matrix, and the family says which it is.
  const Edited transposed(sample("llama-4"));
  const LayerWeights weights = transposed->weights(0);
  EXPECT_EQ(weights.routed[1].up.rows, 96);
  EXPECT_EQ(weights.routed[1].up.row_stride, 2);
  EXPECT_EQ(weights.routed[1].up.codes - weights.routed[1].gate->codes, 96 * 2);
  // A stack that nothing reads is an error.
  EXPECT_EQ(refused(
                [] {
                  Edited(sample("qwen3-moe"), [](auto& m) {
                    m.add({"model.layers.0.mlp.experts.gate_up_proj",
                           DType::bf16,
                           {8, 192, 128},
                           std::vector<std::byte>(8 * 192 * 128 * 2)});
                  });
                },
                {"gate_up_proj"}),
            "unused_tensor");
}

TEST(Reports, B101_WhatASchemeDoesNotUseIsNotAskedFor) {
  const std::string up = "model.layers.0.mlp.experts.2.up_proj.";
  const Edited symmetric(fixture("qwen3_moe_ct_int4"), [&](auto& m) {
    for (auto& [file, tensors] : m.files)
      for (const NamedTensor& tensor : tensors)
        EXPECT_FALSE(tensor.name.ends_with("g_idx") || tensor.name.ends_with("zero_point")) << tensor.name;
    m.template set<std::uint32_t>(up + "weight_packed", 0, 0x98);  // 8, 9, 0, ...
  });
  const WeightMatrix matrix = symmetric->weights(0).routed[2].up;
  EXPECT_FALSE(matrix.integers.grouping.zero_points || matrix.integers.grouping.act_order);
  const std::vector<float> row = row_of(matrix, 0);
  EXPECT_EQ(row[0], 0);
  EXPECT_GT(row[1], 0);
  EXPECT_EQ(row[2], -8 * row[1]);
  // GPTQ without activation order, with the list of groups and without it.
  const Edited with(fixture("mixtral_gptq"));
  const Edited without(fixture("mixtral_gptq"), [](auto& m) {
    for (auto& [file, tensors] : m.files)
      std::erase_if(tensors, [](const NamedTensor& tensor) { return tensor.name.ends_with(".g_idx"); });
  });
  expect_equal(without->weights(0), with->weights(0));
}

/// Layer 0 in NVFP4, layer 1 in BF16, which the configuration says module by module.
EditableModel half_converted(int left_out) {
  EditableModel model = sample("qwen3-moe-nvfp4");
  const EditableModel plain = sample("qwen3-moe");
  model.remove_below("model.layers.1.mlp.experts.");
  std::string ignored = "\"lm_head\"";
  for (const auto& [file, tensors] : plain.files)
    for (const NamedTensor& tensor : tensors) {
      if (!tensor.name.starts_with("model.layers.1.mlp.experts.")) continue;
      model.add(tensor);
      const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
      const bool listed = module.find("experts." + std::to_string(left_out) + ".") == module.npos;
      if (listed) ignored += ", \"" + module + "\"";
    }
  model.in_config("\"lm_head\"", ignored);
  return model;
}

TEST(Reports, B102_AnExcludeListOfChildren) {
  const Edited model(half_converted(-1));
  EXPECT_EQ(model->spec(0).routed.formats.up, kNvfp4);
  EXPECT_EQ(model->spec(1).routed.formats.up, kBf16);
  EXPECT_NO_THROW((void)model->weights(1));
  refused([] { Edited(half_converted(5)); }, {"experts.5."});
}

TEST(Reports, B104_ASharedExpertKeepsItsOwnFormat) {
  LayerSpec spec =
      spec_of(kNvfp4, kSilu, {.limit = 10}, {.hidden = 96, .intermediate = 64, .experts = 4, .top_k = 2});
  spec.shared =
      SharedSpec{.experts = spec_of(kBf16, kSilu, {.limit = 10}, {.hidden = 96, .intermediate = 64}).routed};
  const Toy mixed{.spec = spec, .weights = testing::draw_weights(spec, testing::Numbers::noisy, 4)};
  Toy plain{.spec = spec_of(kBf16, kSilu, {.limit = 10}, {.hidden = 96, .intermediate = 64}), .weights = {}};
  plain.weights.routed = mixed.weights.shared;
  plain.weights.owner = mixed.weights.owner;
  ASSERT_EQ(mixed.weights.shared[0].up.format, kBf16);
  Call nobody = draw_call(spec, 5, 3);
  std::ranges::fill(nobody.ids, -1);
  const Call alone{.tokens = 5, .hidden = nobody.hidden};
  for (const Backend* backend : fitting(spec)) {
    const Output out = run(*backend, mixed, nobody);
    EXPECT_EQ(out.block, run(*backend, plain, alone).experts) << backend->name;
    EXPECT_GT(norm(out.block), 0) << backend->name;
    EXPECT_EQ(norm(out.experts), 0) << backend->name;
  }
}

TEST(Reports, B106_ARankPacksOnlyWhatIsItsOwn) {
  constexpr int kRanks = 8;
  const LayerSpec whole =
      spec_of(kNvfp4, kSilu, {}, {.hidden = 128, .intermediate = 96, .experts = 16, .top_k = 4});
  const Toy toy{.spec = whole, .weights = testing::draw_weights(whole, testing::Numbers::noisy, 4)};
  Toy part = toy;
  part.spec.routed.local_experts = 2;
  part.weights.routed = {toy.weights.routed[6], toy.weights.routed[7]};
  std::vector<std::int32_t> map(16, -1);
  map[6] = 0;
  map[7] = 1;
  for (const Backend* backend : fitting(part.spec)) {
    std::int64_t all = 0, mine = 0;
    const Layer full(plan_on(*backend, toy.spec), toy.weights,
                     {.progress = [&](std::int64_t, std::int64_t total) { all = total; }});
    const Layer rank(
        plan_on(*backend, part.spec), part.weights,
        {.expert_map = map, .progress = [&](std::int64_t, std::int64_t total) { mine = total; }});
    EXPECT_EQ(rank.packed_bytes() * kRanks, full.packed_bytes()) << backend->name;
    EXPECT_EQ(mine * kRanks, all) << backend->name;
    Call call = draw_call(whole, 6, 2);
    const Output of_rank = run(rank, call);
    for (std::int32_t& id : call.ids) id = id == 6 || id == 7 ? id : -1;
    EXPECT_EQ(of_rank.experts, run(full, call).experts) << backend->name;
  }
}

TEST(Reports, B107_LayersOfDifferentFormatsAgree) {
  Expert expert;
  for (int j = 0; j < 4; ++j) {
    expert.gate.push_back({32 * j, 0, 0.5 * (1 << j)});
    expert.up.push_back({32 * j, 0, j % 2 == 0 ? 2 : -0.25});
    expert.down.push_back({j, 32 * j, 4});
  }
  for (const Backend* backend : fitting(spec_of(kBf16, kSilu))) {
    const Output plain = run(*backend, make(spec_of(kBf16, kSilu), {expert}), one_hot(128));
    EXPECT_NE(norm(plain.experts), 0);
    int formats = 0;
    for (const Format format : all_formats()) {
      const Toy toy = make(spec_of(format, kSilu), {expert});
      if (plan_on(*backend, toy.spec).chosen.empty()) continue;
      EXPECT_EQ(run(*backend, toy, one_hot(128)), plain) << backend->name << ", " << format.str();
      ++formats;
    }
    EXPECT_GE(formats, 4) << backend->name;
  }
  const Edited model(half_converted(-1));
  EXPECT_NE(model->spec(0).routed.formats, model->spec(1).routed.formats);
}

/// A GGUF whose keys say 8 experts of this width and whose tensors have `experts` of `width`.
std::string refusal_of_gguf(std::uint32_t said_width, std::uint64_t width, std::uint64_t experts) {
  testing::GgufWriter file;
  const std::string arch = "qwen3moe.";
  file.add_text("general.architecture", "qwen3moe");
  file.add_u32(arch + "block_count", 1);
  file.add_u32(arch + "embedding_length", 32);
  file.add_u32(arch + "feed_forward_length", said_width);
  file.add_u32(arch + "expert_feed_forward_length", said_width);
  file.add_u32(arch + "expert_count", 8);
  file.add_u32(arch + "expert_used_count", 2);
  const auto add = [&](const char* name, std::vector<std::uint64_t> ne) {
    std::uint64_t bytes = 4;
    for (const std::uint64_t size : ne) bytes *= size;
    file.tensors.push_back({.name = name, .ne = std::move(ne), .bytes = std::string(bytes, '\0')});
  };
  add("blk.0.ffn_gate_inp.weight", {32, 8});
  add("blk.0.ffn_gate_exps.weight", {32, width, experts});
  add("blk.0.ffn_up_exps.weight", {32, width, experts});
  add("blk.0.ffn_down_exps.weight", {width, 32, experts});
  const testing::TemporaryDirectory directory;
  const std::string path = directory.file("model.gguf");
  testing::write_file(path, file.file());
  try {
    const Checkpoint model = Checkpoint::open(path);
    model.weights(0);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Reports, B103_KeysAndTensorsOfGgufThatDisagree) {
  EXPECT_EQ(refusal_of_gguf(64, 64, 8), "");
  const auto says = [](const std::string& refusal, const char* one, const char* other) {
    return refusal.find(one) != refusal.npos && refusal.find(other) != refusal.npos;
  };
  const std::string experts = refusal_of_gguf(64, 64, 7), width = refusal_of_gguf(2368, 2560, 8);
  EXPECT_TRUE(says(experts, "8", "7")) << experts;
  EXPECT_TRUE(says(width, "2368", "2560")) << width;
}

}  // namespace
}  // namespace sluice::reports
