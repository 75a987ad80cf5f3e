// SPDX-License-Identifier: Apache-2.0
// Every code of every element type against its specification, written out as sign * 2^exponent * mantissa.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "format/f16.h"

namespace sluice::format {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A binary floating-point number with subnormals, as IEEE 754 defines it, without its special codes.
double defined(unsigned code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(code >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double sign = (code >> (exponent_bits + mantissa_bits) & 1) != 0 ? -1 : 1;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

void expect_same(double got, double want, unsigned code) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << "code " << code;
    return;
  }
  EXPECT_EQ(got, want) << "code " << code;
  EXPECT_EQ(std::signbit(got), std::signbit(want)) << "code " << code;
}

TEST(E4m3, EveryCode) {
  for (unsigned code = 0; code < 256; ++code) {
    const double want = (code & 0x7F) == 0x7F ? NAN : defined(code, 4, 3);
    expect_same(e4m3_to_float(static_cast<std::uint8_t>(code)), want, code);
  }
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), std::ldexp(1.0f, -9));
}

TEST(E2m1, EveryCode) {
  const double want[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  for (unsigned code = 0; code < 16; ++code) {
    expect_same(e2m1_to_float(static_cast<std::uint8_t>(code)), (code & 8 ? -1 : 1) * want[code & 7], code);
    expect_same(kE2m1[code], defined(code, 2, 1), code);
  }
}

TEST(E8m0, EveryCode) {
  for (int code = 0; code < 255; ++code)
    expect_same(e8m0_to_float(static_cast<std::uint8_t>(code)), std::ldexp(1.0, code - 127), code);
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(E8m0, ExponentsThatDoNotExistSaturate) {
  for (int exponent = -127; exponent <= 127; ++exponent)
    EXPECT_EQ(e8m0_from_exponent(exponent), exponent + 127);
  EXPECT_EQ(e8m0_from_exponent(-500), 0);
  EXPECT_EQ(e8m0_from_exponent(500), 254);
}

TEST(F16, EveryCode) {
  for (unsigned code = 0; code < 65536; ++code) {
    const unsigned magnitude = code & 0x7FFF;
    const double special = magnitude > 0x7C00 ? NAN : (code >> 15 != 0 ? -kInfinity : kInfinity);
    const double want = magnitude >= 0x7C00 ? special : defined(code, 5, 10);
    expect_same(f16_to_float(static_cast<std::uint16_t>(code)), want, code);
  }
}

TEST(Bf16, EveryCode) {
  for (unsigned code = 0; code < 65536; ++code) {
    const unsigned magnitude = code & 0x7FFF;
    const double special = magnitude > 0x7F80 ? NAN : (code >> 15 != 0 ? -kInfinity : kInfinity);
    const double want = magnitude >= 0x7F80 ? special : defined(code, 8, 7);
    expect_same(bf16_to_float(static_cast<std::uint16_t>(code)), want, code);
  }
}

/// One type for the tests that all share: non-negative codes 0 .. last are finite and ascending.
struct Type {
  const char* name;
  unsigned last;
  unsigned sign;
  float (*decode)(unsigned);
  unsigned (*encode)(float);
  bool saturates;
};

const Type kTypes[] = {
    {"e2m1", 7, 8, [](unsigned c) { return e2m1_to_float(static_cast<std::uint8_t>(c)); },
     [](float x) { return unsigned{float_to_e2m1(x)}; }, true},
    {"e4m3", 0x7E, 0x80, [](unsigned c) { return e4m3_to_float(static_cast<std::uint8_t>(c)); },
     [](float x) { return unsigned{float_to_e4m3(x)}; }, true},
    {"f16", 0x7BFF, 0x8000, [](unsigned c) { return f16_to_float(static_cast<std::uint16_t>(c)); },
     [](float x) { return unsigned{float_to_f16(x)}; }, false},
    {"bf16", 0x7F7F, 0x8000, [](unsigned c) { return bf16_to_float(static_cast<std::uint16_t>(c)); },
     [](float x) { return unsigned{float_to_bf16(x)}; }, false},
};

TEST(Elements, EncodingADecodedCodeIsTheIdentity) {
  for (const Type& type : kTypes)
    for (unsigned code = 0; code <= type.last; ++code) {
      EXPECT_EQ(type.encode(type.decode(code)), code) << type.name;
      EXPECT_EQ(type.encode(type.decode(code | type.sign)), code | type.sign) << type.name;
    }
}

TEST(Elements, RoundToNearestAndTiesToEven) {
  for (const Type& type : kTypes)
    for (unsigned code = 0; code < type.last; ++code) {
      const float low = type.decode(code), high = type.decode(code + 1);
      const float middle = low + (high - low) / 2;  // exact: one bit more than the type has
      ASSERT_EQ(middle - low, high - middle) << type.name << " " << code;
      EXPECT_EQ(type.encode(middle), code + (code & 1)) << type.name;
      EXPECT_EQ(type.encode(std::nextafter(middle, 0.0f)), code) << type.name;
      EXPECT_EQ(type.encode(std::nextafter(middle, high)), code + 1) << type.name;
      EXPECT_EQ(type.encode(-middle), (code + (code & 1)) | type.sign) << type.name;
    }
}

TEST(Elements, BeyondTheLargest) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Type& type : kTypes) {
    const unsigned beyond =
        type.saturates ? type.last : type.last + 1;  // the code after the last is infinity
    EXPECT_EQ(type.encode(infinity), beyond) << type.name;
    EXPECT_EQ(type.encode(-infinity), beyond | type.sign) << type.name;
    EXPECT_EQ(type.encode(std::numeric_limits<float>::max()), beyond) << type.name;
  }
  EXPECT_EQ(float_to_e4m3(448.5f), 0x7E);
  EXPECT_EQ(float_to_e4m3(464.0f), 0x7E);
  EXPECT_EQ(float_to_e2m1(7.0f), 7);
  EXPECT_EQ(float_to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7C00);
}

TEST(Elements, NanStaysNanWhereThereIsOne) {
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu, 0x7F80FFFFu}) {
    const float nan = bits_as<float>(bits);
    EXPECT_TRUE(std::isnan(e4m3_to_float(float_to_e4m3(nan))));
    EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(nan))));
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(nan))));
    EXPECT_EQ(float_to_e2m1(nan), 7);
  }
}

TEST(Elements, WorkAtCompileTime) {
  static_assert(float_to_e4m3(1.0f) == 0x38 && e4m3_to_float(0x38) == 1.0f);
  static_assert(float_to_e2m1(-6.0f) == 15 && kE2m1[15] == -6.0f);
  static_assert(float_to_bf16(1.0f) == 0x3F80 && float_to_f16(1.0f) == 0x3C00);
  static_assert(e8m0_to_float(127) == 1.0f);
}

}  // namespace
}  // namespace sluice::format
