// SPDX-License-Identifier: Apache-2.0
// The decoding of the kernels against the formats' own, for every code and every scale, on the processor.
#include "experts/cuda/common/unpack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "experts/cuda/common/terms.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "testing/draw.h"

namespace sluice::cuda {
namespace {

using format::bf16_to_float;

float half_of(std::uint32_t pair, int half) {
  return bf16_to_float(static_cast<std::uint16_t>(pair >> (16 * half)));
}

/// As fma.rn.bf16x2 with a zero: the product, which must be a bf16.
float product(std::uint32_t value, std::uint32_t multiplier) {
  const double exact = double(half_of(value, 0)) * half_of(multiplier, 0);
  const float rounded = bf16_to_float(format::float_to_bf16(static_cast<float>(exact)));
  EXPECT_EQ(double(rounded), exact) << std::hex << value << " times " << multiplier;
  return rounded;
}

std::uint32_t fp4_pattern(unsigned code) { return (code & 8u) << 12 | (code & 7u) << 6; }

TEST(Unpack, SixteenFp4ComeBackAsTheyWent) {
  testing::Draw draw(1);
  for (int round = 0; round < 20000; ++round) {
    std::uint32_t registers[8], got[8];
    for (std::uint32_t& value : registers) value = static_cast<std::uint32_t>(draw.bits()) & kFp4Pattern;
    const WordPair words = pack_fp4(registers);
    unpack_fp4(words.first, words.second, got);
    for (int i = 0; i < 8; ++i) ASSERT_EQ(got[i], registers[i]) << i;
  }
}

TEST(Unpack, EveryFp4TimesEveryPowerOfTwo) {
  for (unsigned code = 0; code < 16; ++code)
    for (int below = 0; below <= 132; ++below) {
      const float want = format::e2m1_to_float(static_cast<std::uint8_t>(code)) * std::ldexp(1.0f, -below);
      const std::uint32_t multiplier = e8m0_multiplier(static_cast<std::uint32_t>(126 + 127 - below));
      ASSERT_EQ(product(fp4_pattern(code), multiplier), want) << code << " 2^-" << below;
    }
}

TEST(Unpack, EveryFp4TimesEveryE4m3) {
  for (unsigned code = 0; code < 16; ++code)
    for (unsigned scale = 1; scale < 0x7F; ++scale) {
      const float s = format::e4m3_to_float(static_cast<std::uint8_t>(scale));
      const std::uint32_t bits = bits_as<std::uint32_t>(s * 0x1p118f) >> 16;
      ASSERT_EQ(bits & 0xF00Fu, 0x7000u) << scale;
      const std::uint32_t multiplier = e4m3_multiplier((bits & 0x0FFFu) >> 4);
      ASSERT_EQ(multiplier & 0xFFFFu, bits);
      const float want = format::e2m1_to_float(static_cast<std::uint8_t>(code)) * s;
      ASSERT_EQ(product(fp4_pattern(code), multiplier) * kFp4E4m3Back, want) << code << " by " << scale;
    }
}

TEST(Unpack, EveryFp8) {
  for (unsigned code = 0; code < 256; ++code) {
    if ((code & 0x7Fu) == 0x7Fu) continue;  // NaN is the row's factor
    const float want = format::e4m3_to_float(static_cast<std::uint8_t>(code));
    for (const std::uint32_t pair : {code, code << 8}) {
      const std::uint32_t got = unpack_fp8(pair);
      EXPECT_EQ(product(got >> (pair == code ? 0 : 16) & 0xFFFFu, kFp8Unscaled & 0xFFFFu), want) << code;
    }
    for (int below = 0; below <= 124; ++below) {
      const std::uint32_t multiplier = e8m0_multiplier(static_cast<std::uint32_t>(120 + 127 - below));
      ASSERT_EQ(product(unpack_fp8(code), multiplier), want * std::ldexp(1.0f, -below))
          << code << " " << below;
    }
  }
}

TEST(Unpack, EveryF16IsTwoTerms) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    std::uint32_t first, second;
    split_f16(bits << 16 | bits, first, second);
    ASSERT_EQ(first & 0xFFFFu, first >> 16);
    ASSERT_EQ(second & 0xFFFFu, second >> 16);
    const float want = format::f16_to_float(static_cast<std::uint16_t>(bits));
    const float high = half_of(first, 0), low = half_of(second, 0);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(high)) << bits;
      continue;
    }
    ASSERT_EQ(high + low, want) << bits;
    if ((bits & 0x7FFFu) > 8 && std::isfinite(want)) {
      ASSERT_TRUE(high != 0 && low != 0 && std::signbit(high) == std::signbit(low)) << bits;
    }
  }
}

TEST(Unpack, OnlyFiniteDropsWhatIsNot) {
  EXPECT_EQ(only_finite(0x7F803F80u), 0x00003F80u);
  EXPECT_EQ(only_finite(0x3F80FFC0u), 0x3F800000u);
  EXPECT_EQ(only_finite(0x7F7FFF7Fu), 0x7F7FFF7Fu);
}

TEST(Terms, ThreeSumToAFloat) {
  testing::Draw draw(2);
  for (int round = 0; round < 100000; ++round) {
    const float x = bits_as<float>(static_cast<std::uint32_t>(draw.bits()));
    const Terms terms = split(x);
    const float of[] = {bf16_to_float(terms.of[0]), bf16_to_float(terms.of[1]), bf16_to_float(terms.of[2])};
    if (!std::isfinite(x)) {
      EXPECT_EQ(std::isnan(of[0]), std::isnan(x));
      if (!std::isnan(x)) {
        EXPECT_EQ(of[0], x);
      }
      EXPECT_EQ(terms.of[1] | terms.of[2], 0);
      continue;
    }
    const double sum = double(of[0]) + of[1] + of[2];
    // A bf16 ends at 2^-133.
    ASSERT_LE(std::abs(sum - x), 0x1p-133) << x;
    if (std::abs(x) > 0x1p-109) {
      ASSERT_EQ(sum, x);
    }
  }
}

TEST(Terms, OneHoldsABf16AndTwoAnF16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float bf16 = bf16_to_float(static_cast<std::uint16_t>(bits));
    const float f16 = format::f16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isfinite(bf16)) {
      ASSERT_EQ(split(bf16).of[0], bits);
      ASSERT_EQ(split(bf16).of[1] & 0x7FFFu, 0) << bits;
    }
    ASSERT_EQ(split(f16).of[2] & 0x7FFFu, 0) << bits;
  }
}

TEST(Terms, ANanKeepsNoInfinity) {
  EXPECT_TRUE(std::isnan(bf16_to_float(split(bits_as<float>(std::uint32_t{0x7F800001})).of[0])));
}

}  // namespace
}  // namespace sluice::cuda
