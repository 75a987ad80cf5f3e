// SPDX-License-Identifier: Apache-2.0
// Section C of the reports: the order of gate and up, and of what is packed.
#include <cstring>

#include "testing/gguf_writer.h"
#include "testing/synthetic.h"
#include "tests/reports/model.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

TEST(Reports, B28_GateAndUpHaveNamesAndNotPositions) {
  expect_rows(kSilu, {}, {{2, 3, 5.2848}, {3, 2, 5.7154}});
}

/// Interleaved rows, biases, one second scale of 0.25 for all.
TEST(Reports, B29_InterleavedNvfp4WithBiasesAndASecondScale) {
  Expert expert = toy_expert({{0.5, 2.5}});
  expert.gate_bias = {0.5};
  expert.up_bias = {-0.5};
  expert.down_bias = std::vector<float>(128, 1);
  LayerSpec spec = spec_of(kNvfp4, kSilu, kSwigluOai, {.experts = 2});
  Toy toy = make(spec, {expert, expert});
  // In units of 1/4: gate 2, up 10.
  auto both = shared(matrix(kNvfp4, {256, 128}, {{0, 0, 2}, {1, 0, 10}}));
  both->matrix.second_scale = 0.25f;
  for (ExpertWeights& weights : toy.weights.routed) {
    weights.gate = every_second_row(both->matrix, 0);
    weights.up = every_second_row(both->matrix, 1);
  }
  keep(toy, both);
  for (const Backend* backend : fitting(toy.spec))
    for (const float p : {1.0f, 0.5f}) {
      Call call = one_hot(128);
      call.ids = {1};
      call.weights = {p};
      EXPECT_TRUE(near(run(*backend, toy, call).experts[0], double{p} * (2.5374 + 1))) << backend->name;
    }
  // A scale under another spelling is not skipped.
  EXPECT_EQ(refused(
                [] {
                  Edited(fixture("gpt_oss_mxfp4"), [](auto& m) {
                    m.add({"model.layers.0.mlp.experts.gate_up_proj_weight_scale_2",
                           DType::f32,
                           {},
                           std::vector<std::byte>(4)});
                  });
                },
                {"gate_up_proj_weight_scale_2"}),
            "unused_scale");
}

TEST(Reports, B30_InterleavedRowsOnTheProcessor) {
  for (const Format format : all_formats()) {
    if (format == kFp8Block) continue;  // a scale of it spans rows of both
    const LayerSpec spec = spec_of(format, kSilu, kSwigluOai);
    const Toy toy = make_interleaved(spec, toy_expert({{1, 2}, {3, -1}}));
    for (const Backend* backend : fitting(spec)) {
      const Output out = run(*backend, toy, one_hot(128));
      EXPECT_TRUE(near(out.experts[0], 2.5374)) << backend->name << ", " << format.str();
      EXPECT_TRUE(near(out.experts[32], 0)) << backend->name << ", " << format.str();
    }
  }
  // The model's own reader says so, too.
  const Edited model(fixture("gpt_oss_bf16"));
  const LayerWeights weights = model->weights(0);
  const WeightMatrix &gate = *weights.routed[0].gate, &up = weights.routed[0].up;
  EXPECT_EQ(up.codes - gate.codes, gate.row_stride / 2);
}

/// One expert of 64 by 64 from a GGUF file: row 0 of up is `row` in blocks of ggml's type `type`, the other
/// rows are zero; gate row 0 is all ones, down the identity.
Checkpoint gguf_of(std::uint32_t type, const std::string& row) {
  constexpr std::uint64_t kSize = 64;
  testing::GgufWriter file;
  file.add_text("general.architecture", "qwen3moe");
  for (const char* key : {"embedding_length", "feed_forward_length", "expert_feed_forward_length"})
    file.add_u32(std::string("qwen3moe.") + key, kSize);
  for (const char* key : {"block_count", "expert_count", "expert_used_count"})
    file.add_u32(std::string("qwen3moe.") + key, 1);
  const auto floats = [&](std::uint64_t rows, auto number) {
    std::string bytes;
    for (std::uint64_t r = 0; r < rows; ++r)
      for (std::uint64_t c = 0; c < kSize; ++c)
        bytes += testing::GgufWriter::raw(static_cast<float>(number(r, c)));
    return bytes;
  };
  const std::vector<std::uint64_t> stack{kSize, kSize, 1};
  file.tensors = {
      {"blk.0.ffn_gate_inp.weight", 0, {kSize, 1}, floats(1, [](auto, auto) { return 0; })},
      {"blk.0.ffn_gate_exps.weight", 0, stack, floats(kSize, [](auto r, auto) { return r == 0 ? 1 : 0; })},
      {"blk.0.ffn_up_exps.weight", type, stack, row + std::string(63 * row.size(), '\0')},
      {"blk.0.ffn_down_exps.weight", 0, stack, floats(kSize, [](auto r, auto c) { return r == c ? 1 : 0; })},
  };
  const testing::TemporaryDirectory directory;
  testing::write_file(directory.file("model.gguf"), file.file());
  return Checkpoint::open(directory.file("model.gguf"));
}

/// Codes 0 to 15 at columns 0 to 15 in GGUF's order: the report's bytes, of NVFP4, whose groups have 16
/// columns; in MXFP4's groups of 32 element j is low and j + 16 high, here the same code.
void expect_ggufs_order_turned() {
  const double values[] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
  std::string nvfp4 = "\x38\x38\x38\x38\x80\x91\xA2\xB3\xC4\xD5\xE6\xF7", mxfp4 = "\x7F";
  nvfp4.resize(36, '\0');
  for (int j = 0; j < 16; ++j) mxfp4 += static_cast<char>(0x11 * j);
  mxfp4.resize(34, '\0');
  for (const auto& [type, row] : {std::pair{40u, nvfp4}, std::pair{39u, mxfp4}}) {
    const Checkpoint model = gguf_of(type, row);
    const Toy toy{.spec = model.spec(0), .weights = model.weights(0)};
    double up[64];
    decode_row(toy.weights.routed[0].up, 0, up);
    for (std::size_t c = 0; c < 16; ++c) EXPECT_EQ(up[c], values[c]) << type << ", column " << c;
    for (std::size_t c = 0; c < 16 && type == 39; ++c)
      EXPECT_EQ(up[16 + c], values[c]) << "column " << 16 + c;
    Call call{.tokens = 16, .hidden = std::vector<float>(16 * 64)};
    for (std::size_t c = 0; c < 16; ++c) call.hidden[c * 64 + c] = 1;
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, call);
      for (std::size_t c = 0; c < 16; ++c)
        EXPECT_TRUE(near(out.experts[c * 64], 0.7310585786 * values[c])) << backend->name << ", column " << c;
    }
  }
}

TEST(Reports, B32_NeighboursShareAByteTheEvenOneLow) {
  const unsigned char bytes[] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE};
  const double values[] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
  for (const Format format : {kMxfp4, kNvfp4}) {
    auto up = shared(blank(format, {32, 32}));
    std::memcpy(up->codes.data(), bytes, sizeof bytes);
    for (std::size_t i = 0; i < sizeof bytes; ++i)  // row 1: the signs turned
      up->codes[static_cast<std::size_t>(up->matrix.row_stride) + i] = std::byte(bytes[i] ^ 0x88);
    double row[32];
    decode_row(up->matrix, 0, row);
    for (std::size_t c = 0; c < 16; ++c) EXPECT_EQ(row[c], values[c]) << format.str() << ", column " << c;
    // And in a layer: squared, the negative ones by row 1.
    Toy toy = make(spec_of(format, kRelu2, {}, {.hidden = 32, .intermediate = 32}),
                   {Expert{.gate = {}, .up = {}, .down = identity(32)}});
    toy.weights.routed[0].up = up->matrix;
    keep(toy, up);
    Call call{.tokens = 16, .hidden = std::vector<float>(16 * 32)};
    for (std::size_t c = 0; c < 16; ++c) call.hidden[c * 32 + c] = 1;
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, call);
      for (std::size_t c = 0; c < 16; ++c) {
        const double square = values[c] * values[c];
        EXPECT_EQ(out.experts[c * 32], values[c] > 0 ? square : 0) << backend->name << ", column " << c;
        EXPECT_EQ(out.experts[c * 32 + 1], values[c] < 0 ? square : 0) << backend->name << ", column " << c;
      }
    }
  }
  expect_ggufs_order_turned();
}

/// The report's shape with 480 for 2880: 15 groups of 32.
TEST(Reports, B34_AllBackendsAgree) {
  LayerSpec spec = testing::public_shape("gpt-oss-20b", kMxfp4);
  ASSERT_EQ(spec.routed.experts, 32);
  ASSERT_EQ(spec.routed.top_k, 4);
  ASSERT_EQ(spec.routed.params, kSwigluOai);
  ASSERT_TRUE(spec.routed.gate_up_bias && spec.routed.down_bias);
  spec.routed.hidden = spec.routed.intermediate = 480;
  const auto team = make_thread_team(2);
  const Toy toy{.spec = spec, .weights = testing::synthetic_weights(spec, 5, *team)};
  const Call call = draw_call(spec, 8, 9);
  const std::vector<float> definition = run(*reference(), toy, call).experts;
  ASSERT_GT(norm(definition), 1);
  std::vector<std::vector<float>> all;
  for (const Backend* backend : fitting(spec)) {
    all.push_back(run(*backend, toy, call).experts);
    EXPECT_LT(rel_l2(all.back(), definition), 2e-5) << backend->name;
    for (const auto& other : all) EXPECT_LT(rel_l2(all.back(), other), 2e-2) << backend->name;
  }
}

}  // namespace
}  // namespace sluice::reports
