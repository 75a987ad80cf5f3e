// SPDX-License-Identifier: Apache-2.0
// GGUF's blocks in a card's layout, against the formats' own decoders: every code with scales and minimums of
// all kinds.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "format/f16.h"
#include "testing/draw.h"
#include "testing/drawn_layer.h"
#include "tests/cuda/integer_rows.h"

namespace sluice::cuda {
namespace {

using format::Encoded;

std::vector<Format> blocks() { return formats_where(is_ggml_block); }

TEST(RepackBlocks, HasFiveFormats) {
  EXPECT_EQ(blocks().size(), 5u);
  for (const Format format : blocks()) EXPECT_TRUE(has_storage(format)) << format.str();
}

TEST(RepackBlocks, EveryFormatComesBack) {
  for (const Format format : blocks())
    for (const bool gated : {true, false})
      for (const auto& [hidden, intermediate] : {std::pair{256, 512}, {768, 256}, {32, 96}}) {
        if (hidden % geometry(format).block_cols != 0) continue;
        SCOPED_TRACE(::testing::Message() << format.str() << " " << hidden << "x" << intermediate);
        const ExpertsSpec spec = spec_of(format, hidden, intermediate, gated);
        const LayerWeights weights = testing::draw_weights(layer_of(spec), testing::Numbers::noisy, 3);
        expect_round_trip(spec, weights.routed.front());
        if (HasFailure()) return;
      }
}

/// A finite binary16: any, or one with an exponent that others have too.
std::uint16_t draw_number(testing::Draw& draw) {
  const auto bits = static_cast<std::uint16_t>(draw.bits());
  if (draw.below(2) == 0) return static_cast<std::uint16_t>((bits & 0x83FFu) | 0x2400u);
  return (bits & 0x7C00u) == 0x7C00u ? static_cast<std::uint16_t>(bits & 0x83FFu) : bits;
}

/// Bytes as they come, and numbers that are finite.
Encoded draw_blocks(Format format, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Encoded encoded =
      encode(format, std::vector<float>(static_cast<std::size_t>(rows * cols), 1.0f).data(), rows, cols);
  testing::Draw draw(seed);
  for (std::byte& byte : encoded.codes) byte = static_cast<std::byte>(draw.bits());
  const int block_bytes = geometry(format).block_bytes;
  const format::BlockNumbers at = format::block_numbers(format);
  for (std::byte* block = encoded.codes.data(); block != encoded.codes.data() + encoded.codes.size();
       block += block_bytes) {
    store(block + at.scale, draw_number(draw));
    if (at.minimum >= 0) store(block + at.minimum, draw_number(draw));
  }
  return encoded;
}

TEST(RepackBlocks, AnyBytesComeBack) {
  for (const Format format : blocks()) {
    SCOPED_TRACE(format.str());
    const ExpertsSpec spec = spec_of(format, 512, 256, true);
    const Encoded gate = draw_blocks(format, 256, 512, 1), up = draw_blocks(format, 256, 512, 2),
                  down = draw_blocks(format, 512, 256, 3);
    expect_round_trip(spec, {.gate = gate.matrix, .up = up.matrix, .down = down.matrix});
    if (HasFailure()) return;
  }
}

/// A number is drawn among those above; what a zero point takes is any of 256.
TEST(RepackBlocks, ZeroPointsLeaveAtMostHalfAScale) {
  const ExpertsSpec spec = spec_of(Formats::of<format::Q4K>(), 512, 256, true);
  const Encoded up = draw_blocks(spec.formats.up, 256, 512, 1),
                down = draw_blocks(spec.formats.up, 512, 256, 3);
  const std::vector<std::byte> memory =
      repacked(spec, {.gate = up.matrix, .up = up.matrix, .down = down.matrix});
  const StripsLayout layout = expert_layout(spec).up;
  std::set<int> seen;
  for (std::int64_t block = 0; block < std::int64_t{layout.strips} * layout.k_blocks; ++block)
    for (int part = 0; part < 2; ++part)
      for (int r = 0; r < kStripRows; ++r)
        for (int run = 0; run < 2; ++run) {
          const std::byte* scales = memory.data() + layout.blocks + block * block_bytes(layout.storage) +
                                    value_bytes(layout.storage) + part * scale_bytes(layout.storage) / 2;
          const GroupScale of = scale_of(layout.storage, scales, r, run, 2);
          seen.insert(of.zero);
          if (of.zero > 0 && of.zero < 255) {
            EXPECT_LE(std::abs(of.rest), std::abs(of.scale) / 2);
          }
        }
  EXPECT_GT(seen.size(), 50u);
}

/// Of 32 packed columns the first four of every eight are those of one group of 16: a step of a product.
TEST(RepackBlocks, AStepIsAGroupOfSixteen) {
  const Encoded row = draw_blocks(Formats::of<format::Q6K>(), 1, 256, 1);
  const ColumnOrder order = order_of(row.matrix, Storage::q6_k);
  ASSERT_EQ(order.columns.size(), 256u);
  for (int step = 0; step < 16; ++step)
    for (int lane = 0; lane < kLanes; ++lane)
      for (int index = 0; index < 4; ++index)
        for (int half = 0; half < 2; ++half) {
          const int packed =
              step / kSteps * kBlockColumns + place(Storage::q6_k, lane, step % kSteps, index).column + half;
          EXPECT_EQ(order.columns[static_cast<std::size_t>(packed)] / 16, step);
        }
  std::vector<std::int32_t> sorted = order.columns;
  std::ranges::sort(sorted);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(sorted[static_cast<std::size_t>(i)], i);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(order.groups[static_cast<std::size_t>(i)], i);
}

/// What explain says that a layer takes of the card.
TEST(RepackBlocks, SizesOfABlock) {
  EXPECT_EQ(block_bytes(Storage::q4_k), 1024 + 320);
  EXPECT_EQ(block_bytes(Storage::q5_k), 2048 + 320);
  EXPECT_EQ(block_bytes(Storage::q6_k), 2048 + 192);
  EXPECT_EQ(storage_of(Formats::of<format::Q4_0>()), Storage::int4_g32);
  EXPECT_EQ(storage_of(Formats::of<format::Q8_0>()), Storage::int8_g32);
  const ExpertsSpec spec = spec_of(Formats::of<format::Q6K>(), 512, 256, true);
  EXPECT_EQ(expert_layout(spec).gathered, 512);
  EXPECT_EQ(expert_layout(spec_of(Formats::of<format::Q4K>(), 512, 256, true)).gathered, 0);
}

}  // namespace
}  // namespace sluice::cuda
