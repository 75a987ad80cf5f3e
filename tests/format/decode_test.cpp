// SPDX-License-Identifier: Apache-2.0
// decode_row against the formula, spelled out element by element: every code with every scale, strides,
// ragged tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/scales.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using format::e2m1_to_float;
using format::e4m3_to_float;
using format::e8m0_to_float;

Format named(std::string_view name) { return Format::parse(name).value(); }

struct Rows {
  std::vector<float> single;
  std::vector<double> exact;
};

Rows decode(const WeightMatrix& matrix, std::int64_t row) {
  const auto cols = static_cast<std::size_t>(matrix.cols);
  Rows rows{std::vector<float>(cols), std::vector<double>(cols)};
  decode_row(matrix, row, rows.single.data());
  decode_row(matrix, row, rows.exact.data());
  return rows;
}

/// `want` is exact in double; the float32 result is `want` rounded once.
void expect_element(const Rows& rows, std::size_t c, double want) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(rows.exact[c]) && std::isnan(rows.single[c])) << "column " << c;
    return;
  }
  EXPECT_EQ(rows.exact[c], want) << "column " << c;
  EXPECT_EQ(rows.single[c], static_cast<float>(want)) << "column " << c;
}

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 draw(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(draw());
  return bytes;
}

std::uint8_t at(const std::vector<std::byte>& bytes, std::size_t i) {
  return static_cast<std::uint8_t>(bytes[i]);
}

// The even column sits in the low nibble: 16 bytes 0x10, 0x32, ... hold the codes 0 .. 15 twice.
std::vector<std::byte> all_nibbles(std::size_t bytes) {
  std::vector<std::byte> codes(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    codes[i] = static_cast<std::byte>((2 * i % 16) | (2 * i + 1) % 16 << 4);
  return codes;
}

TEST(Mxfp4, EveryCodeWithEveryScale) {
  const std::vector<std::byte> codes = all_nibbles(16);
  for (const DType dtype : {DType::f8_e8m0, DType::u8})
    for (unsigned scale = 0; scale < 256; ++scale) {
      const auto byte = static_cast<std::byte>(scale);
      const WeightMatrix matrix{.format = named("mxfp4"),
                                .rows = 1,
                                .cols = 32,
                                .codes = codes.data(),
                                .scales = {&byte, dtype, 1, 1}};
      const Rows rows = decode(matrix, 0);
      const double factor = scale == 255 ? NAN : std::ldexp(1.0, static_cast<int>(scale) - 127);
      for (unsigned c = 0; c < 32; ++c)
        expect_element(rows, c, e2m1_to_float(static_cast<std::uint8_t>(c % 16)) * factor);
    }
}

TEST(Nvfp4, EveryCodeWithEveryScaleAndSecondScales) {
  const std::vector<std::byte> codes = all_nibbles(8);
  for (const float second : {1.0f, 0.3f, 1.7e-4f, 2.9f})
    for (unsigned scale = 0; scale < 256; ++scale) {
      const auto byte = static_cast<std::byte>(scale);
      const WeightMatrix matrix{.format = named("nvfp4"),
                                .rows = 1,
                                .cols = 16,
                                .codes = codes.data(),
                                .scales = {&byte, DType::f8_e4m3, 1, 1},
                                .second_scale = second};
      const Rows rows = decode(matrix, 0);
      const double factor = e4m3_to_float(static_cast<std::uint8_t>(scale));
      std::vector<float> unscaled(16);
      format::Nvfp4::decode_row_unscaled(matrix, 0, unscaled.data());
      for (unsigned c = 0; c < 16; ++c) {
        const double product = e2m1_to_float(static_cast<std::uint8_t>(c)) * factor;
        expect_element(rows, c, product * second);
        if (scale % 128 != 127) {
          EXPECT_EQ(unscaled[c], product);
        }
      }
    }
}

/// A scale of each type that FP8 checkpoints use, near 0.0117.
struct Scale {
  DType dtype;
  std::vector<std::byte> bytes;
  double value;
};

template <class T>
Scale make_scale(DType dtype, T stored, double value) {
  Scale scale{dtype, std::vector<std::byte>(sizeof(T)), value};
  store(scale.bytes.data(), stored);
  return scale;
}

std::vector<Scale> fp8_scales() {
  const std::uint16_t half = format::float_to_f16(0.0117f), brain = format::float_to_bf16(0.0117f);
  return {make_scale(DType::f32, 0.0117f, 0.0117f),
          make_scale(DType::bf16, brain, format::bf16_to_float(brain)),
          make_scale(DType::f16, half, format::f16_to_float(half)),
          make_scale(DType::f8_e8m0, std::uint8_t{121}, 1.0 / 64),
          make_scale(DType::u8, std::uint8_t{121}, 1.0 / 64)};
}

TEST(Fp8, EveryCodeWithEveryTypeOfScale) {
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  for (const std::string_view name : {"fp8_block128", "fp8_channel", "fp8_tensor"})
    for (const Scale& scale : fp8_scales()) {
      const WeightMatrix matrix{.format = named(name),
                                .rows = 1,
                                .cols = 256,
                                .codes = codes.data(),
                                .row_stride = 256,
                                .col_stride = 1,
                                .scales = {scale.bytes.data(), scale.dtype, 0, 0}};
      const Rows rows = decode(matrix, 0);
      for (std::size_t c = 0; c < 256; ++c)
        expect_element(rows, c, e4m3_to_float(at(codes, c)) * scale.value);
    }
}

TEST(Mxfp8, EveryCodeWithEveryScale) {
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  for (unsigned scale = 0; scale < 256; ++scale) {
    const auto byte = static_cast<std::byte>(scale);
    const WeightMatrix matrix{.format = named("mxfp8"),
                              .rows = 1,
                              .cols = 256,
                              .codes = codes.data(),
                              .row_stride = 256,
                              .col_stride = 1,
                              .scales = {&byte, DType::f8_e8m0, 0, 0}};
    const Rows rows = decode(matrix, 0);
    const double factor = scale == 255 ? NAN : std::ldexp(1.0, static_cast<int>(scale) - 127);
    for (std::size_t c = 0; c < 256; ++c) expect_element(rows, c, e4m3_to_float(at(codes, c)) * factor);
  }
}

TEST(Mxfp8, AScaleForEveryGroupOfEveryRow) {
  const std::vector<std::byte> codes = random_bytes(5 * 96, 1);
  std::vector<std::byte> scales(5 * 3);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(110 + 2 * i);
  const WeightMatrix matrix{.format = named("mxfp8"),
                            .rows = 5,
                            .cols = 96,
                            .codes = codes.data(),
                            .row_stride = 96,
                            .col_stride = 1,
                            .scales = {scales.data(), DType::u8, 3, 1}};
  for (std::size_t r = 0; r < 5; ++r) {
    const Rows rows = decode(matrix, static_cast<std::int64_t>(r));
    for (std::size_t c = 0; c < 96; ++c)
      expect_element(
          rows, c, double{e4m3_to_float(at(codes, r * 96 + c))} * e8m0_to_float(at(scales, r * 3 + c / 32)));
  }
}

/// 192 x 200: the last row of tiles has 64 rows, the last column 72 columns.
TEST(Fp8Block128, RaggedTilesOfBothKindsOfScale) {
  const std::vector<std::byte> codes = random_bytes(192 * 200, 2);
  const float numbers[4] = {0.5f, 0.013f, 3.0f, 1e-5f};
  const std::uint8_t powers[4] = {120, 127, 130, 100};
  for (const DType dtype : {DType::f32, DType::f8_e8m0}) {
    const bool plain = dtype == DType::f32;
    const ScalesView scales{
        plain ? reinterpret_cast<const std::byte*>(numbers) : reinterpret_cast<const std::byte*>(powers),
        dtype, plain ? 8 : 2, plain ? 4 : 1};
    const WeightMatrix matrix{.format = named("fp8_block128"),
                              .rows = 192,
                              .cols = 200,
                              .codes = codes.data(),
                              .row_stride = 200,
                              .col_stride = 1,
                              .scales = scales};
    for (std::size_t r = 0; r < 192; ++r) {
      const Rows rows = decode(matrix, static_cast<std::int64_t>(r));
      for (std::size_t c = 0; c < 200; ++c) {
        const std::size_t tile = r / 128 * 2 + c / 128;
        const double scale = plain ? numbers[tile] : std::ldexp(1.0, powers[tile] - 127);
        expect_element(rows, c, e4m3_to_float(at(codes, r * 200 + c)) * scale);
      }
    }
  }
}

TEST(Fp8, ChannelHasAScaleForARowAndTensorOneForAll) {
  const std::vector<std::byte> codes = random_bytes(3 * 10, 3);
  const float scales[3] = {0.5f, 7.0f, 0.001f};
  WeightMatrix matrix{.format = named("fp8_channel"),
                      .rows = 3,
                      .cols = 10,
                      .codes = codes.data(),
                      .row_stride = 10,
                      .col_stride = 1,
                      .scales = {reinterpret_cast<const std::byte*>(scales), DType::f32, 4, 0}};
  for (std::size_t r = 0; r < 3; ++r) {
    const Rows rows = decode(matrix, static_cast<std::int64_t>(r));
    for (std::size_t c = 0; c < 10; ++c)
      expect_element(rows, c, double{e4m3_to_float(at(codes, r * 10 + c))} * scales[r]);
  }
  matrix.format = named("fp8_tensor");
  const Rows rows = decode(matrix, 2);
  for (std::size_t c = 0; c < 10; ++c)
    expect_element(rows, c, double{e4m3_to_float(at(codes, 20 + c))} * scales[0]);
}

/// gpt-oss: even rows are gate, odd rows up.
TEST(Strides, InterleavedRowsOf4BitCodes) {
  const std::vector<std::byte> codes = random_bytes(8 * 32, 4);
  std::vector<std::byte> scales(8 * 2);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(120 + i);
  for (std::size_t half = 0; half < 2; ++half) {
    const WeightMatrix matrix{.format = named("mxfp4"),
                              .rows = 4,
                              .cols = 64,
                              .codes = codes.data() + half * 32,
                              .row_stride = 64,
                              .scales = {scales.data() + half * 2, DType::u8, 4, 1}};
    for (std::size_t r = 0; r < 4; ++r) {
      const Rows rows = decode(matrix, static_cast<std::int64_t>(r));
      const std::size_t stored = 2 * r + half;
      for (std::size_t c = 0; c < 64; ++c) {
        const unsigned pair = at(codes, stored * 32 + c / 2);
        const auto code = static_cast<std::uint8_t>(c % 2 == 0 ? pair & 15 : pair >> 4);
        expect_element(rows, c,
                       e2m1_to_float(code) * std::ldexp(1.0, static_cast<int>(stored * 2 + c / 32) - 7));
      }
    }
  }
}

/// The BF16 release of gpt-oss stores [in, out]: our rows are its columns, at any alignment.
TEST(Strides, TransposedPlainAndFp8) {
  std::vector<std::byte> bytes(1 + 6 * 5 * 2);
  for (std::size_t i = 0; i < 30; ++i)
    store(bytes.data() + 1 + 2 * i, format::float_to_bf16(static_cast<float>(i) - 15.5f));
  const WeightMatrix plain{.format = named("bf16"),
                           .rows = 5,
                           .cols = 6,
                           .codes = bytes.data() + 1,
                           .row_stride = 2,
                           .col_stride = 10};
  for (std::size_t r = 0; r < 5; ++r) {
    const Rows rows = decode(plain, static_cast<std::int64_t>(r));
    for (std::size_t c = 0; c < 6; ++c) expect_element(rows, c, static_cast<double>(c * 5 + r) - 15.5);
  }
  const std::vector<std::byte> codes = random_bytes(6 * 5, 5);
  const float scale = 2.0f;
  const WeightMatrix fp8{.format = named("fp8_tensor"),
                         .rows = 5,
                         .cols = 6,
                         .codes = codes.data(),
                         .row_stride = 1,
                         .col_stride = 5,
                         .scales = {reinterpret_cast<const std::byte*>(&scale), DType::f32, 0, 0}};
  for (std::size_t r = 0; r < 5; ++r) {
    const Rows rows = decode(fp8, static_cast<std::int64_t>(r));
    for (std::size_t c = 0; c < 6; ++c) expect_element(rows, c, 2.0 * e4m3_to_float(at(codes, c * 5 + r)));
  }
}

TEST(Plain, F32AndF16) {
  const float numbers[3] = {1.1f, -0.0f, 3e38f};
  const WeightMatrix wide{.format = named("f32"),
                          .rows = 1,
                          .cols = 3,
                          .codes = reinterpret_cast<const std::byte*>(numbers),
                          .row_stride = 12,
                          .col_stride = 4};
  const std::uint16_t halves[3] = {0x3C01, 0x8001, 0x7BFF};
  const WeightMatrix half{.format = named("f16"),
                          .rows = 1,
                          .cols = 3,
                          .codes = reinterpret_cast<const std::byte*>(halves),
                          .row_stride = 6,
                          .col_stride = 2};
  for (std::size_t c = 0; c < 3; ++c) {
    expect_element(decode(wide, 0), c, numbers[c]);
    expect_element(decode(half, 0), c, format::f16_to_float(halves[c]));
  }
}

TEST(Scales, OtherTypesAreRefusedByName) {
  const std::int32_t number = 1;
  const ScalesView scales{reinterpret_cast<const std::byte*>(&number), DType::i32, 0, 0};
  try {
    format::scale_at(scales, 0, 0);
    FAIL() << "an I32 was read as a scale";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("I32"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice
