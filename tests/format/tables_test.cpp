// SPDX-License-Identifier: Apache-2.0
// An oracle that shares no code with us: ml_dtypes and numpy, by way of tables.h (make_tables.py).
#include <gtest/gtest.h>

#include <cmath>

#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "format/f16.h"
#include "tests/format/tables.h"

namespace sluice::format {
namespace {

std::uint32_t bits_with_one_nan(float value) {
  return std::isnan(value) ? 0x7FC00000u : bits_as<std::uint32_t>(value);
}

struct Fnv {
  std::uint64_t hash = 0xCBF29CE484222325u;
  void add(std::uint32_t word) { hash = (hash ^ word) * 0x100000001B3u; }
};

/// inputs() of make_tables.py.
template <class Visit>
void each_input(float largest, Visit visit) {
  std::uint64_t state = 1;
  const int exponent = static_cast<int>(std::log2(largest));
  for (int i = 0; i < 1 << 16; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto word = static_cast<std::uint32_t>(state >> 32);
    const float drawn = bits_as<float>(word);
    int ignored = 0;
    const float mantissa = std::isfinite(drawn) ? std::frexp(drawn, &ignored) : 0.0f;
    visit(std::ldexp(mantissa, exponent + 2 - static_cast<int>((word >> 3) % 44)));
  }
}

template <class Encode>
std::uint64_t hash_encoded(float largest, Encode encode) {
  Fnv fnv;
  each_input(largest, [&](float value) { fnv.add(encode(value)); });
  return fnv.hash;
}

template <class Decode>
std::uint64_t hash_decoded(Decode decode) {
  Fnv fnv;
  for (unsigned code = 0; code < 65536; ++code)
    fnv.add(bits_with_one_nan(decode(static_cast<std::uint16_t>(code))));
  return fnv.hash;
}

TEST(MlDtypes, DecodesEveryCodeAsWeDo) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(bits_with_one_nan(e4m3_to_float(byte)), tables::kE4m3[code]) << code;
    EXPECT_EQ(bits_with_one_nan(e8m0_to_float(byte)), tables::kE8m0[code]) << code;
  }
  for (unsigned code = 0; code < 16; ++code)
    EXPECT_EQ(bits_with_one_nan(e2m1_to_float(static_cast<std::uint8_t>(code))), tables::kE2m1[code]) << code;
  EXPECT_EQ(hash_decoded(bf16_to_float), tables::kBf16Decoded);
  EXPECT_EQ(hash_decoded(f16_to_float), tables::kF16Decoded);
}

TEST(MlDtypes, EncodesAsWeDo) {
  EXPECT_EQ(hash_encoded(6.0f, float_to_e2m1), tables::kE2m1Encoded);
  EXPECT_EQ(hash_encoded(448.0f, float_to_e4m3), tables::kE4m3Encoded);
  EXPECT_EQ(hash_encoded(65504.0f, float_to_f16), tables::kF16Encoded);
  EXPECT_EQ(hash_encoded(1e4f, float_to_bf16), tables::kBf16Encoded);
}

}  // namespace
}  // namespace sluice::format
