// SPDX-License-Identifier: Apache-2.0
// Parts of matrices in GGUF's blocks, of any bytes: what is kept is what it was, what is another rank's is 0.
#include "format/sub_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "format/formats.h"
#include "format/fp4_blocks.h"
#include "format/ggml_blocks.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr std::int64_t kRows = 5, kCols = 768;

struct InBlocks {
  WeightMatrix matrix;
  std::vector<std::byte> bytes;
};

InBlocks any(std::string_view name, BlockLayout floats, unsigned most) {
  InBlocks made{.matrix = {.format = *Format::parse(name)}, .bytes = {}};
  made.matrix.rows = kRows;
  made.matrix.cols = kCols;
  const auto shape = sluice::geometry(made.matrix.format);
  const std::int64_t columns = floats.columns != 0 ? floats.columns : shape.block_cols;
  const std::int64_t bytes = floats.columns != 0 ? floats.bytes : shape.block_bytes;
  made.matrix.row_stride = kCols / columns * bytes;
  std::mt19937 draw(7);
  made.bytes.resize(static_cast<std::size_t>(kRows * made.matrix.row_stride));
  for (std::byte& byte : made.bytes) byte = std::byte(draw() % most);
  made.matrix.codes = made.bytes.data();
  if (floats.columns == 0) return made;
  const std::int64_t scales = columns / shape.group_cols;
  made.matrix.blocks = floats;
  made.matrix.scales = {made.bytes.data(), scales == 1 ? DType::f8_e8m0 : DType::f8_e4m3,
                        made.matrix.row_stride, 1};
  made.matrix.codes += scales;
  return made;
}

void expect_part(const WeightMatrix& whole, const format::Part& part) {
  format::Owned owned;
  const WeightMatrix made = format::part_of(whole, part, owned);
  ASSERT_EQ(made.rows, part.rows.size());
  ASSERT_EQ(made.cols, part.columns.size());
  std::vector<float> want(static_cast<std::size_t>(whole.cols)), got(static_cast<std::size_t>(made.cols));
  for (std::int64_t r = 0; r < made.rows; ++r) {
    decode_row(whole, part.rows.first + r, want.data());
    decode_row(made, r, got.data());
    for (std::int64_t c = 0; c < made.cols; ++c) {
      const std::int64_t column = part.columns.first + c;
      const bool kept = column >= part.kept.first && column < part.kept.last;
      ASSERT_EQ(got[static_cast<std::size_t>(c)], kept ? want[static_cast<std::size_t>(column)] : 0.0f)
          << whole.format.str() << ", row " << r << ", column " << column;
    }
  }
}

TEST(SubBlocks, RowsAndWholeBlocksAreViews) {
  for (const char* name : {"q4_0", "q8_0", "q4_k", "q5_k", "q6_k"}) {
    const InBlocks whole = any(name, {}, 60u);
    format::Owned owned;
    expect_part(whole.matrix, {.rows = {1, 4}, .columns = {0, kCols}, .kept = {0, kCols}});
    expect_part(whole.matrix, {.rows = {0, 5}, .columns = {256, 512}, .kept = {256, 512}});
    format::part_of(whole.matrix, {.rows = {1, 4}, .columns = {256, 512}, .kept = {256, 512}}, owned);
    EXPECT_TRUE(owned.empty()) << name;
  }
}

TEST(SubBlocks, ColumnsOfAnotherRankAreZero) {
  for (const char* name : {"q4_0", "q8_0", "q6_k", "q4_k", "q5_k"}) {
    const InBlocks whole = any(name, {}, 60u);
    const std::int64_t unit = format::has_minimums(whole.matrix.format) ? 32 : 1;
    for (std::int64_t first = 256; first < 512; first += unit)
      expect_part(whole.matrix,
                  {.rows = {0, 2}, .columns = {256, 768}, .kept = {first, 512 + first / 2 / 32 * 32}});
  }
}

TEST(SubBlocks, FloatsOf4BitsAreCutAnywhere) {
  for (const bool wide : {false, true}) {
    const InBlocks whole =
        wide ? any("nvfp4", format::kNvfp4Block, 120u) : any("mxfp4", format::kMxfp4Block, 120u);
    const std::int64_t group = wide ? 16 : 32;
    expect_part(whole.matrix, {.rows = {1, 4}, .columns = {0, kCols}, .kept = {0, kCols}});
    for (std::int64_t first = 0; first < 256; first += group)
      for (const std::int64_t within : {std::int64_t{0}, std::int64_t{1}, group - 1})
        expect_part(whole.matrix, {.rows = {1, 3},
                                   .columns = {first, 512 - first},
                                   .kept = {first + within, 512 - first - within}});
  }
}

}  // namespace
}  // namespace sluice
