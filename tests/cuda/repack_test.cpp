// SPDX-License-Identifier: Apache-2.0
// Repacked weights, read back with the kernels' own decoding and held against the formats' decoders: every
// format, ragged shapes, and scales that only a matrix drawn for them has.
#include "experts/cuda/common/repack.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "activation/activation.h"
#include "core/bits.h"
#include "experts/cuda/common/unpack.h"
#include "format/formats.h"
#include "format/fp4_blocks.h"
#include "sluice/error.h"
#include "testing/draw.h"
#include "testing/drawn_layer.h"
#include "tests/cuda/repacked.h"

namespace sluice::cuda {
namespace {

using format::bf16_to_float;

/// A block's multiplier bits for lane and register, as the kernel fetches them.
std::uint32_t multiplier(Storage storage, const std::byte* scales, int lane, int index, int pair) {
  const int half = index % 2;
  if (storage == Storage::fp4_e4m3)
    return e4m3_multiplier(load<std::uint8_t>(scales + 4 * lane + 2 * half + pair / 2));
  if (storage == Storage::fp4_e8m0 || storage == Storage::fp8_e8m0)
    return e8m0_multiplier(load<std::uint8_t>(scales + 2 * lane + half));
  return kFp8Unscaled;
}

/// The sixteen values of a lane in two steps; without the row's factor.
std::array<double, 16> values_of(Storage storage, const std::byte* block, int lane, int pair) {
  std::uint32_t registers[8], second[8] = {};
  const int bits = value_bits(storage);
  const auto word = [&](int offset) { return load<std::uint32_t>(block + offset); };
  if (bits == 4) {
    const int at = pair / 2 * 512 + lane * 16 + pair % 2 * 8;
    unpack_fp4(word(at), word(at + 4), registers);
  }
  for (int i = 0; i < 8 && bits == 8; ++i)
    registers[i] = unpack_fp8(word(pair * 512 + lane * 16 + i / 2 * 4) >> (16 * (i % 2)));
  for (int i = 0; i < 8 && bits == 16; ++i) {
    registers[i] = word((2 * pair + i / 4) * 512 + lane * 16 + i % 4 * 4);
    if (storage == Storage::f16) split_f16(registers[i], registers[i], second[i]);
  }
  std::array<double, 16> values;
  for (int i = 0; i < 8; ++i)
    for (int half = 0; half < 2; ++half) {
      const auto part = [&](std::uint32_t pair_bits) {
        return bf16_to_float(static_cast<std::uint16_t>(pair_bits >> (16 * half)));
      };
      double value = double(part(registers[i])) + part(second[i]);
      if (bits < 16) {
        value *= part(multiplier(storage, block + value_bytes(storage), lane, i % 4, pair));
        EXPECT_EQ(value, bf16_to_float(format::float_to_bf16(static_cast<float>(value)))) << "not a bf16";
      }
      values[static_cast<std::size_t>(2 * i + half)] = value;
    }
  return values;
}

/// Row `row` of half `half` (gate or the only matrix: 0, up: 1) as the kernel's sums see it, with its factor.
std::vector<double> read_row(const StripsLayout& layout, const std::byte* expert, int row, int half) {
  const int strip = row / (layout.paired ? 8 : 16);
  const int r = layout.paired ? row % 8 + 8 * half : row % 16;
  std::vector<double> values(static_cast<std::size_t>(layout.columns()));
  double factor = load<float>(expert + layout.factors + 4 * (strip * kStripRows + r));
  if (layout.storage == Storage::fp4_e4m3) factor *= kFp4E4m3Back;
  for (int k = 0; k < layout.k_blocks; ++k) {
    const std::byte* block =
        expert + layout.blocks + strip * layout.strip_bytes() + k * block_bytes(layout.storage);
    double scale = 1;
    if (layout.storage == Storage::fp8_scaled)
      scale = load<float>(block + value_bytes(layout.storage) + 4 * (r / 8));
    for (int t = 0; t < 4; ++t)
      for (int pair = 0; pair < 4; ++pair) {
        const auto of_lane = values_of(layout.storage, block, 4 * (r % 8) + t, pair);
        for (int i = 0; i < 16; ++i) {
          const int step = 2 * pair + i / 8, index = i / 2 % 4;
          if (index % 2 != r / 8) continue;
          const int column = 128 * k + place(layout.storage, 4 * (r % 8) + t, step, index).column + i % 2;
          values[static_cast<std::size_t>(column)] = of_lane[static_cast<std::size_t>(i)] * scale * factor;
        }
      }
  }
  return values;
}

void expect_row(const WeightMatrix& matrix, std::int64_t row, const std::vector<double>& got) {
  std::vector<double> want(static_cast<std::size_t>(matrix.cols));
  decode_row(matrix, row, want.data());
  for (std::size_t c = 0; c < got.size(); ++c)
    ASSERT_EQ(got[c], c < want.size() ? want[c] : 0.0) << "row " << row << ", column " << c;
}

std::vector<Format> formats() {
  return formats_where(
      [](Format format) { return has_storage(format) && !is_integer(format) && !is_ggml_block(format); });
}

TEST(Repack, HasEightFormatsBesideIntegersAndBlocks) { EXPECT_EQ(formats().size(), 8u); }

TEST(Repack, EveryFormatComesBackExactly) {
  for (const Format format : formats())
    for (const bool gated : {true, false})
      for (const auto& [hidden, intermediate] : {std::pair{256, 128}, {160, 96}, {32, 288}, {177, 21}}) {
        if (hidden % 2 == 1 && geometry(format).group_rows == 1 && geometry(format).group_cols > 0) continue;
        SCOPED_TRACE(::testing::Message()
                     << format.str() << " " << hidden << "x" << intermediate << " " << gated);
        const LayerSpec layer = layer_of(spec_of(format, hidden, intermediate, gated));
        const LayerWeights weights = testing::draw_weights(layer, testing::Numbers::noisy, 3);
        const ExpertWeights& expert = weights.routed.front();
        const ExpertLayout layout = expert_layout(layer.routed);
        const std::vector<std::byte> memory = repacked(layer.routed, expert);
        for (int row = 0; row < intermediate; ++row) {
          if (gated) expect_row(*expert.gate, row, read_row(layout.up, memory.data(), row, 0));
          expect_row(expert.up, row, read_row(layout.up, memory.data(), row, 1));
        }
        for (int row = 0; row < hidden; ++row)
          expect_row(expert.down, row, read_row(layout.down, memory.data(), row, 0));
        if (HasFailure()) return;
      }
}

TEST(Repack, BiasesLieBesideTheirRows) {
  const LayerSpec layer = layer_of(spec_of(Formats::of<format::Bf16>(), 24, 10, true));
  const LayerWeights weights = testing::draw_weights(layer, testing::Numbers::noisy, 3);
  const ExpertWeights& expert = weights.routed.front();
  const ExpertLayout layout = expert_layout(layer.routed);
  const std::vector<std::byte> memory = repacked(layer.routed, expert);
  const auto number = [](const VectorView& vector, int i) {
    return bf16_to_float(load<std::uint16_t>(vector.data + i * vector.stride));
  };
  const auto bias = [&](std::int64_t at, int strip, int r) {
    return load<float>(memory.data() + at + 4 * (16 * strip + r));
  };
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(bias(layout.up.bias, i / 8, i % 8), i < 10 ? number(expert.gate_bias, i) : 0.0f) << i;
    EXPECT_EQ(bias(layout.up.bias, i / 8, 8 + i % 8), i < 10 ? number(expert.up_bias, i) : 0.0f) << i;
  }
  for (int i = 0; i < 24; ++i)
    EXPECT_EQ(bias(layout.down.bias, i / 16, i % 16), number(expert.down_bias, i)) << i;
}

/// Sixteen rows whose codes and scales a test writes, as an ungated up; down is ones.
struct OneRow {
  OneRow(Format format, int cols)
      : encoded(encode(format, std::vector<float>(16 * cols, 1.0f).data(), 16, cols)),
        down(encode(Formats::of<format::Bf16>(), std::vector<float>(16 * cols, 1.0f).data(), cols, 16)) {}
  ExpertWeights expert() const { return {.gate = std::nullopt, .up = encoded.matrix, .down = down.matrix}; }
  std::vector<double> row(int r) const {
    const ExpertsSpec spec = of();
    const std::vector<std::byte> memory = repacked(spec, expert());
    return read_row(expert_layout(spec).up, memory.data(), r, 0);
  }
  ExpertsSpec of() const {
    ExpertsSpec spec = spec_of(encoded.matrix.format, static_cast<int>(encoded.matrix.cols), 16, false);
    spec.formats.down = down.matrix.format;
    return spec;
  }
  format::Encoded encoded, down;
};

/// Codes and scales as they come, scales within reach of each other and no NaN.
TEST(Repack, BlocksOfGgufComeBack) {
  for (const auto& [format, blocks] : {std::pair{Formats::of<format::Mxfp4>(), format::kMxfp4Block},
                                       {Formats::of<format::Nvfp4>(), format::kNvfp4Block}}) {
    SCOPED_TRACE(format.str());
    OneRow made(format, 320);
    WeightMatrix& matrix = made.encoded.matrix;
    const int scales = blocks.columns / geometry(format).group_cols;
    testing::Draw draw(5);
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(matrix.rows * matrix.cols / blocks.columns * blocks.bytes));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool scale = i % static_cast<std::size_t>(blocks.bytes) < static_cast<std::size_t>(scales);
      bytes[i] = static_cast<std::byte>(scale ? 64 + draw.below(48) : draw.below(256));
    }
    matrix.row_stride = matrix.cols / blocks.columns * blocks.bytes;
    matrix.codes = bytes.data() + scales;
    matrix.scales = {bytes.data(), matrix.scales.dtype, matrix.row_stride, 1};
    matrix.blocks = blocks;
    for (int row = 0; row < 16; ++row) expect_row(matrix, row, made.row(row));
  }
}

TEST(Repack, EveryE8m0ScaleIsExact) {
  for (const Format format : {Formats::of<format::Mxfp4>(), Formats::of<format::Mxfp8>()})
    for (int code = 0; code < 255; ++code) {
      OneRow one(format, 64);
      testing::Draw draw(static_cast<std::uint64_t>(code));
      for (std::byte& byte : one.encoded.codes) byte = std::byte(draw.below(256) & 0xF7);  // no NaN
      // Scales up to 100 binades apart in a row.
      for (std::size_t i = 0; i < one.encoded.scales.size(); ++i)
        one.encoded.scales[i] =
            std::byte(i % 2 == 0 ? code : std::max(0, code - static_cast<int>(draw.below(100))));
      for (int r : {0, 9}) expect_row(one.encoded.matrix, r, one.row(r));
      if (HasFailure()) return;
    }
}

TEST(Repack, EveryE4m3ScaleIsExact) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    OneRow one(Formats::of<format::Nvfp4>(), 64);
    testing::Draw draw(static_cast<std::uint64_t>(code));
    for (std::byte& byte : one.encoded.codes) byte = std::byte(draw.below(256));
    for (std::size_t i = 0; i < one.encoded.scales.size(); ++i)
      one.encoded.scales[i] = std::byte(i % 2 == 0 ? code : static_cast<int>(draw.below(0x7F)));
    one.encoded.matrix.second_scale = 0.37f;
    for (int r : {0, 9}) expect_row(one.encoded.matrix, r, one.row(r));
    if (HasFailure()) return;
  }
}

TEST(Repack, ScalesTooFarApartAreRefusedUnlessTheyScaleZeros) {
  OneRow one(Formats::of<format::Mxfp4>(), 64);
  one.encoded.scales[0] = std::byte{254};
  one.encoded.scales[1] = std::byte{254 - 132};
  expect_row(one.encoded.matrix, 0, one.row(0));
  one.encoded.scales[1] = std::byte{254 - 133};
  try {
    one.row(0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_EQ(error.info().code, "scales_too_far_apart");
  }
  for (int i = 16; i < 32; ++i) one.encoded.codes[static_cast<std::size_t>(i)] = std::byte{0x80};  // 0 and -0
  expect_row(one.encoded.matrix, 0, one.row(0));
}

TEST(Repack, ANanMakesItsRowsFactorOne) {
  for (const Format format : {Formats::of<format::Mxfp8>(), Formats::of<format::Fp8Channel>()}) {
    OneRow one(format, 64);
    one.encoded.codes[64 + 3] = std::byte{0xFF};
    EXPECT_TRUE(std::isnan(one.row(1)[0]));
    EXPECT_FALSE(std::isnan(one.row(0)[0]));
  }
  OneRow nv(Formats::of<format::Nvfp4>(), 64);
  nv.encoded.scales[4 + 2] = std::byte{0x7F};
  EXPECT_TRUE(std::isnan(nv.row(1)[0]));
  EXPECT_FALSE(std::isnan(nv.row(0)[0]));
}

TEST(Layout, SizesOfABlockAreThoseOfTheDesign) {
  EXPECT_EQ(block_bytes(Storage::fp4_e4m3), 1024 + 128);
  EXPECT_EQ(block_bytes(Storage::fp4_e8m0), 1024 + 64);
  EXPECT_EQ(block_bytes(Storage::fp8_scaled), 2048 + 16);
  EXPECT_EQ(block_bytes(Storage::bf16), 4096);
}

}  // namespace
}  // namespace sluice::cuda
