// SPDX-License-Identifier: Apache-2.0
// Section E of the reports: rounding of FP8, UE8M0 and MX scales.
#include <cmath>

#include "sluice/error.h"
#include "tests/reports/model.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

TEST(Reports, B51_Float32ScalesAreNotRoundedToPowersOfTwo) {
  for (const Format format : {kFp8Block, kFp8Channel}) {
    auto down = shared(blank(format, {256, 32}));
    put_code(*down, 0, 0, 0x7E);    // 448
    put_code(*down, 128, 0, 0x74);  // 192
    put_scale(*down, 0, 0, 0.75f);
    put_scale(*down, format == kFp8Block ? 1 : 128, 0, 0.0011f);
    const Toy toy = down_probe(down);
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, one_hot(256));
      EXPECT_EQ(out.experts[0], 336) << backend->name << ", " << format.str();
      EXPECT_NEAR(out.experts[128], 0.2112, 1e-7) << backend->name << ", " << format.str();
    }
  }
}

/// The floor rule, in the encoder as in its description; and byte 255.
TEST(Reports, B53_OneRuleForPowerOfTwoScales) {
  std::vector<float> values(6 * 32);
  const float largest[] = {4, 5, 6, 6.5f, 7, 7.9f}, wanted[] = {4, 4, 6, 6, 6, 6};
  for (std::size_t i = 0; i < 6; ++i) values[32 * i + 5] = largest[i];
  const format::Encoded made = encode(kMxfp4, values.data(), 6, 32);
  for (std::int64_t r = 0; r < 6; ++r) {
    double row[32];
    decode_row(made.matrix, r, row);
    EXPECT_EQ(row[5], wanted[r]) << r;
    EXPECT_EQ(made.scales[static_cast<std::size_t>(r)], std::byte{127}) << r;
  }
  const std::string page = testing::read_file(std::string(SLUICE_SOURCE_DIR) + "/docs/formats/mxfp4.md");
  EXPECT_NE(page.find("2^(floor(log2 amax) - 2)"), std::string::npos);
  const auto with_255 = [] {
    const Edited model(fixture("deepseek_v4_fp4"), [](auto& m) {
      m.template set<std::uint8_t>("layers.2.ffn.experts.3.w2.scale", 17, 255);
    });
    (void)model->weights(2);
  };
  EXPECT_EQ(refused(with_255, {"255"}), "scale_e8m0_nan");
}

/// One scale of 1 for the matrix, in every type that a file may have: the type says how it is read.
TEST(Reports, B54_ScalesAreReadInTheTypeTheyHave) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8_e8m0, DType::u8}) {
    auto up = shared(blank(kFp8Tensor, {128, 128}));
    for (const int col : {0, 32, 64, 96}) put_code(*up, 0, col, 0x7E);  // 448
    const unsigned char one[] = {0, 0, 0x80, 0x3F}, half[] = {0x80, 0x3F}, half_float[] = {0, 0x3C},
                        power[] = {127};
    ScalesView& scales = up->matrix.scales;
    scales.dtype = dtype;
    scales.data = reinterpret_cast<const std::byte*>(dtype == DType::f32    ? one
                                                     : dtype == DType::bf16 ? half
                                                     : dtype == DType::f16  ? half_float
                                                                            : power);
    Toy toy = make(spec_of(kFp8Tensor, kRelu2), {Expert{.gate = {}, .up = {}, .down = identity(128)}});
    toy.weights.routed[0].up = up->matrix;
    Call call{.tokens = 4, .hidden = std::vector<float>(4 * 128)};
    for (std::size_t t = 0; t < 4; ++t) call.hidden[t * 128 + 32 * t] = 1;
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, call);
      for (std::size_t t = 0; t < 4; ++t)
        EXPECT_EQ(out.experts[t * 128], 448 * 448)
            << backend->name << ", " << name(dtype) << ", column " << 32 * t;
    }
  }
  Toy wrong = make(spec_of(kFp8Tensor, kRelu2), {Expert{.gate = {}, .up = {{0, 0, 1}}, .down = {{0, 0, 1}}}});
  wrong.weights.routed[0].up.scales.dtype = DType::i32;
  EXPECT_EQ(refused([&] { layer_on(*fitting(wrong.spec).front(), wrong); }, {"I32"}), "bad_weights");
}

TEST(Reports, B55_AnNvfp4ScaleIsAnE4m3Number) {
  const auto with_scale = [](std::uint8_t byte) {
    const Edited model(fixture("qwen3_moe_ct_nvfp4"), [&](auto& m) {
      m.template set<std::uint8_t>("model.layers.0.mlp.experts.1.up_proj.weight_packed", 0, 0x02);  // 1
      m.template set<std::uint8_t>("model.layers.0.mlp.experts.1.up_proj.weight_scale", 0, byte);
      m.template set<float>("model.layers.0.mlp.experts.1.up_proj.weight_global_scale", 0, 1);
    });
    std::vector<double> row(256);
    decode_row(model->weights(0).routed[1].up, 0, row.data());
    return row[0];
  };
  EXPECT_EQ(with_scale(0x7E), 448);
  EXPECT_EQ(refused([&] { with_scale(0x7F); }, {"NaN"}), "scale_nan");
  EXPECT_EQ(refused([&] { with_scale(0x80); }, {"zero"}), "scale_zero");
  EXPECT_EQ(refused([&] { with_scale(0xB8); }, {"-1"}), "scale_negative");
}

}  // namespace
}  // namespace sluice::reports
