// SPDX-License-Identifier: Apache-2.0
// Sizes that published checkpoints have, and the list of formats itself.
#include "format/geometry.h"

#include <gtest/gtest.h>

#include "format/formats.h"

namespace sluice {
namespace {

Format named(std::string_view name) { return Format::parse(name).value(); }

std::int64_t bytes(std::string_view name, std::int64_t rows, std::int64_t cols) {
  return format::matrix_bytes(geometry(named(name)), rows, cols);
}

format::ScaleShape scales(std::string_view name, std::int64_t rows, std::int64_t cols) {
  return format::scale_shape(geometry(named(name)), rows, cols);
}

TEST(Formats, NamesParseToThemselves) {
  const std::vector<std::string_view> want = {
      "f32",        "f16",   "bf16", "mxfp4", "nvfp4", "fp8_block128", "fp8_channel",
      "fp8_tensor", "mxfp8", "int2", "int3",  "int4",  "int5",         "int6",
      "int7",       "int8",  "q4_0", "q8_0",  "q4_k",  "q5_k",         "q6_k"};
  ASSERT_EQ(std::vector<std::string_view>(Format::all().begin(), Format::all().end()), want);
  for (const std::string_view name : want) EXPECT_EQ(named(name).str(), name);
  EXPECT_FALSE(Format::parse("MXFP4"));
  EXPECT_FALSE(Format::parse(""));
}

TEST(Geometry, BytesOfMatrices) {
  EXPECT_EQ(bytes("f32", 3, 5), 60);
  EXPECT_EQ(bytes("f16", 3, 5), 30);
  EXPECT_EQ(bytes("bf16", 3, 5), 30);
  EXPECT_EQ(bytes("mxfp4", 2880, 2880), 2880 * (1440 + 90));
  EXPECT_EQ(bytes("nvfp4", 2880, 2880), 2880 * (1440 + 180) + 4);
  EXPECT_EQ(bytes("fp8_block128", 192, 200), 192 * 200 + 2 * 2 * 4);
  EXPECT_EQ(bytes("fp8_channel", 192, 200), 192 * 200 + 192 * 4);
  EXPECT_EQ(bytes("fp8_tensor", 192, 200), 192 * 200 + 4);
  EXPECT_EQ(bytes("mxfp8", 192, 64), 192 * (64 + 2));
  EXPECT_EQ(bytes("q4_0", 3, 64), 3 * 2 * 18);
  EXPECT_EQ(bytes("q8_0", 3, 64), 3 * 2 * 34);
  EXPECT_EQ(bytes("q4_k", 3, 512), 3 * 2 * 144);
  EXPECT_EQ(bytes("q5_k", 3, 512), 3 * 2 * 176);
  EXPECT_EQ(bytes("q6_k", 3, 512), 3 * 2 * 210);
}

TEST(Geometry, ScaleShapes) {
  const auto expect = [](format::ScaleShape got, std::int64_t rows, std::int64_t cols) {
    EXPECT_EQ(got.rows, rows);
    EXPECT_EQ(got.cols, cols);
  };
  expect(scales("bf16", 192, 200), 0, 0);
  expect(scales("mxfp4", 192, 64), 192, 2);
  expect(scales("nvfp4", 192, 64), 192, 4);
  expect(scales("fp8_block128", 192, 200), 2, 2);
  expect(scales("fp8_block128", 128, 129), 1, 2);
  expect(scales("fp8_block128", 1536, 7168), 12, 56);
  expect(scales("fp8_channel", 192, 200), 192, 1);
  expect(scales("fp8_tensor", 192, 200), 1, 1);
  expect(scales("mxfp8", 192, 64), 192, 2);
}

/// models.md section 0: 13.22 MB an expert of gpt-oss in MXFP4, 14.16 MB one of DeepSeek-V4-Flash in NVFP4.
TEST(Geometry, BytesOfExperts) {
  ExpertsSpec spec{.hidden = 2880,
                   .intermediate = 2880,
                   .experts = 32,
                   .local_experts = 32,
                   .top_k = 4,
                   .formats = {.gate = named("mxfp4"), .up = named("mxfp4"), .down = named("mxfp4")},
                   .activation = Activation::parse("silu").value()};
  EXPECT_EQ(experts_bytes(spec, 1), 3 * 2880 * 1530);
  EXPECT_EQ(experts_bytes(spec, 32), 32 * 3 * 2880 * 1530);
  spec.hidden = 4096;
  spec.intermediate = 2048;
  spec.formats = {.gate = named("nvfp4"), .up = named("nvfp4"), .down = named("nvfp4")};
  EXPECT_EQ(experts_bytes(spec, 1), 3 * (4096 * 2048 * 9 / 16 + 4));
  spec.formats.gate.reset();
  EXPECT_EQ(experts_bytes(spec, 1), 2 * (4096 * 2048 * 9 / 16 + 4));
}

TEST(Geometry, ScaleTypes) {
  const auto accepted = [](std::string_view name) {
    std::string list;
    for (const DType dtype :
         {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::f8_e8m0, DType::u8, DType::i8})
      if (accepts_scales(named(name), dtype)) list += std::string(sluice::name(dtype)) + " ";
    return list;
  };
  EXPECT_EQ(accepted("bf16"), "");
  EXPECT_EQ(accepted("mxfp4"), "F8_E8M0 U8 ");
  EXPECT_EQ(accepted("mxfp8"), "F8_E8M0 U8 ");
  EXPECT_EQ(accepted("nvfp4"), "F8_E4M3 ");
  EXPECT_EQ(accepted("fp8_block128"), "F32 BF16 F16 F8_E8M0 U8 ");
  EXPECT_EQ(accepted("int4"), "F32 BF16 F16 ");
}

}  // namespace
}  // namespace sluice
