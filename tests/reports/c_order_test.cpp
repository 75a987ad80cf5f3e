// SPDX-License-Identifier: Apache-2.0
// Section C of the reports: the order of gate and up, and of what is packed.
#include <cstring>

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
