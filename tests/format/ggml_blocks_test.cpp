// SPDX-License-Identifier: Apache-2.0
// GGUF's blocks against the public gguf package: random blocks and what it decodes them to
// (tests/data/gguf/make_gguf.py), bit for bit, and the accessors that packings read.
#include "format/ggml_blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/gguf_files.h"
#include "checkpoint/gguf_matrix.h"
#include "core/bits.h"
#include "format/formats.h"
#include "format/fp4_blocks.h"
#include "format/grouped_row.h"

namespace sluice {
namespace {

constexpr std::int64_t kRows = 3, kCols = 512;
constexpr const char* kTypes[] = {"Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "NVFP4"};

const checkpoint::GgufFiles& blocks() {
  static const auto files = checkpoint::GgufFiles::open(SLUICE_SOURCE_DIR "/tests/data/gguf/blocks.gguf");
  return files;
}

WeightMatrix matrix_of(const std::string& type) {
  return checkpoint::gguf_matrix(*blocks().find(type), {.cols = kCols, .rows = kRows}, 0);
}

TEST(GgmlBlocks, DecodeToWhatTheGgufPackageSays) {
  for (const std::string type : kTypes) {
    const WeightMatrix matrix = matrix_of(type);
    const std::byte* want = blocks().find(type + ".decoded")->data;
    std::vector<float> row(kCols);
    std::vector<double> exact(kCols);
    for (std::int64_t r = 0; r < kRows; ++r) {
      decode_row(matrix, r, row.data());
      decode_row(matrix, r, exact.data());
      for (std::int64_t c = 0; c < kCols; ++c) {
        const auto at = static_cast<std::size_t>(c);
        const float expected = load<float>(want + 4 * (r * kCols + c));
        // The package makes zeros of either sign positive here and there; values are what counts.
        ASSERT_EQ(row[at], expected) << type << " " << r << " " << c;
        ASSERT_EQ(static_cast<float>(exact[at]), row[at]) << type << " " << r << " " << c;
      }
    }
  }
}

TEST(GgmlBlocks, GroupedRowsAreTheSameNumbers) {
  for (const std::string type : {"Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}) {
    const WeightMatrix matrix = matrix_of(type);
    ASSERT_TRUE(format::has_grouped_rows(matrix));
    const format::GroupedShape shape = format::grouped_shape(matrix);
    EXPECT_EQ(shape.columns, type == "Q6_K" ? 16 : 32);
    EXPECT_EQ(shape.groups, kCols / shape.columns);
    EXPECT_EQ(shape.minimums, type == "Q4_K" || type == "Q5_K");
    std::vector<std::uint8_t> codes(kCols), zeros(static_cast<std::size_t>(shape.groups));
    std::vector<float> scales(zeros.size()), minimums(zeros.size());
    std::vector<double> exact(kCols);
    for (std::int64_t r = 0; r < kRows; ++r) {
      format::grouped_row(matrix, r, {codes.data(), scales.data(), zeros.data(), minimums.data()});
      decode_row(matrix, r, exact.data());
      for (std::size_t c = 0; c < codes.size(); ++c) {
        const std::size_t g = c / static_cast<std::size_t>(shape.columns);
        ASSERT_LT(codes[c], 1 << shape.bits);
        ASSERT_EQ((int{codes[c]} - int{zeros[g]}) * double{scales[g]} - double{minimums[g]}, exact[c]);
      }
    }
  }
}

TEST(GgmlBlocks, GroupedRowsOfIntegersToo) {
  std::vector<float> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) - 5;
  const format::Encoded made =
      encode(*Format::parse("int4"), Grouping{.columns = 32, .zero_points = true}, values.data(), 2, 50);
  const format::GroupedShape shape = format::grouped_shape(made.matrix);
  EXPECT_EQ(shape.groups, 2);
  std::uint8_t codes[50], zeros[2];
  float scales[2], minimums[2], row[50];
  format::grouped_row(made.matrix, 1, {codes, scales, zeros, minimums});
  decode_row(made.matrix, 1, row);
  for (int c = 0; c < 50; ++c)
    EXPECT_EQ(static_cast<float>(codes[c] - zeros[c / 32]) * scales[c / 32], row[c]);
}

/// reports.md, B32: the order of nibbles in a group of 16.
TEST(GgmlBlocks, B32NibblesOfNvfp4) {
  std::byte block[36] = {};
  for (int i = 0; i < 4; ++i) block[i] = std::byte{0x38};  // 1
  constexpr unsigned kOrder[] = {0x80, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7};
  for (int i = 0; i < 8; ++i) block[4 + i] = std::byte{static_cast<unsigned char>(kOrder[i])};
  const WeightMatrix matrix{.format = *Format::parse("nvfp4"),
                            .rows = 1,
                            .cols = 64,
                            .codes = block + 4,
                            .row_stride = 36,
                            .scales = {block, DType::f8_e4m3, 36, 1},
                            .blocks = format::kNvfp4Block};
  float row[64];
  decode_row(matrix, 0, row);
  const float want[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
  for (int i = 0; i < 16; ++i) EXPECT_EQ(row[i], want[i]) << i;
}

TEST(GgmlBlocks, EncodersComeClose) {
  std::vector<float> values(512);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i) * 0.37f);
  const std::pair<const char*, double> kWorst[] = {
      {"q4_0", 0.13}, {"q8_0", 0.005}, {"q4_k", 0.09}, {"q5_k", 0.05}, {"q6_k", 0.035}};
  for (const auto& [name, worst] : kWorst) {
    const format::Encoded made = encode(*Format::parse(name), values.data(), 1, 512);
    std::vector<float> row(512);
    decode_row(made.matrix, 0, row.data());
    for (std::size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(row[i], values[i], worst) << name << " " << i;
  }
}

}  // namespace
}  // namespace sluice
