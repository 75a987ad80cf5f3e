// SPDX-License-Identifier: Apache-2.0
// AVX-512 with look-ups of bytes (VBMI) and integer products that are added at once (VNNI): how codes become
// pairs of bf16, exactly. Only the kernels.cpp of a backend with these instructions includes this; everything
// is in an anonymous namespace (kernel.h says why).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/vector_avx512.h"

namespace sluice::cpu {
namespace {

/// bf16 of the values of e2m1, twice: a look-up reads five bits of a word, and the fifth is another column's.
alignas(64) constexpr std::uint16_t kE2m1[32] = {
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80,
    0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
    0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};

/// A small integer as bf16.
constexpr std::uint16_t bf16_of(int value) {
  if (value == 0) return 0;
  const unsigned magnitude = static_cast<unsigned>(value < 0 ? -value : value);
  int top = 0;
  while (magnitude >> (top + 1) != 0) ++top;
  return static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | (127 + top) << 7 |
                                    ((magnitude << (7 - top)) & 0x7F));
}

struct IntegerTables {
  alignas(64) std::uint16_t less_8[32];  // 0 to 15, twice
  alignas(64) std::uint16_t five_bits[32];
};
constexpr IntegerTables make_integer_tables() {
  IntegerTables tables{};
  for (int i = 0; i < 32; ++i) {
    tables.less_8[i] = bf16_of(i % 16 - 8);
    tables.five_bits[i] = bf16_of(i < 16 ? i : i - 32);
  }
  return tables;
}
constexpr IntegerTables kIntegers = make_integer_tables();

/// Bytes of the bf16 of every magnitude of e4m3, and where four columns of sixteen rows go so that two
/// interleavings of bytes make pairs of columns.
struct E4m3Tables {
  alignas(64) std::uint8_t high[128];
  alignas(64) std::uint8_t low[128];
  alignas(64) std::uint8_t order[64];
};
constexpr E4m3Tables make_e4m3_tables() {
  E4m3Tables tables{};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> 3, fraction = code & 7;
    // In units of 2^-9 a subnormal is its fraction; the exponent of bf16 is the integer's less 9.
    const int bits = exponent == 0 ? (fraction == 0 ? 0 : bf16_of(fraction) - (9 << 7))
                                   : (exponent + 120) << 7 | fraction << 4;
    tables.high[code] = static_cast<std::uint8_t>(bits >> 8);
    tables.low[code] = static_cast<std::uint8_t>(bits & 0xFF);
  }
  for (int i = 0; i < 64; ++i) {
    const int row = i / 16 * 4 + i % 8 / 2, column = i % 16 / 8 * 2 + i % 2;
    tables.order[i] = static_cast<std::uint8_t>(16 * column + row);
  }
  return tables;
}
constexpr E4m3Tables kE4m3 = make_e4m3_tables();

struct PairVector : Vector {
  static void store_dwords(std::int32_t* at, Dwords v) { _mm512_store_si512(at, v); }
  template <int kBits>
  static Dwords shift_words_right(Dwords v) {
    if constexpr (kBits == 0) return v;
    return _mm512_srli_epi16(v, kBits);
  }
  /// Of the low four bits of every word.
  static Dwords e2m1_pairs(Dwords words) { return _mm512_permutexvar_epi16(words, _mm512_load_si512(kE2m1)); }
  static Dwords int4_pairs(Dwords words) {
    return _mm512_permutexvar_epi16(words, _mm512_load_si512(kIntegers.less_8));
  }
  /// Of the low five bits, which have a sign.
  static Dwords int5_pairs(Dwords words) {
    return _mm512_permutexvar_epi16(words, _mm512_load_si512(kIntegers.five_bits));
  }
  /// Four columns, a byte a row. NaN codes are 480 here and NaN by the row's factor.
  static void e4m3_pairs(const std::byte* at, Dwords& first, Dwords& second) {
    const Dwords codes = _mm512_permutexvar_epi8(_mm512_load_si512(kE4m3.order), load_dwords(at));
    const Dwords high =
        _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.high), codes, _mm512_load_si512(kE4m3.high + 64));
    const Dwords low =
        _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3.low), codes, _mm512_load_si512(kE4m3.low + 64));
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    const Dwords with_sign = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), kOrAnd);
    first = _mm512_unpacklo_epi8(low, with_sign);
    second = _mm512_unpackhi_epi8(low, with_sign);
  }

  /// Scales of pairs: exponents to add to both words of a row's dwords, for powers of two that keep every
  /// code a normal number.
  static Dwords e8m0_exponents(const std::byte* at) {
    const Dwords exponents = _mm512_slli_epi32(_mm512_sub_epi32(load_bytes(at), _mm512_set1_epi32(127)), 7);
    return _mm512_or_si512(_mm512_and_si512(exponents, _mm512_set1_epi32(0xFFFF)),
                           _mm512_slli_epi32(exponents, 16));
  }
  static Dwords add_exponents(Dwords w, Dwords exponents) {
    return _mm512_mask_add_epi16(w, _mm512_test_epi16_mask(w, _mm512_set1_epi16(0x7FFF)), w, exponents);
  }
  /// Whether the bytes of all rows are `least` to `most`.
  static bool all_within(const std::byte* at, int least, int most) {
    const __m128i bytes = load_16(at);
    const __m128i clamped = _mm_max_epu8(_mm_min_epu8(bytes, _mm_set1_epi8(static_cast<char>(most))),
                                         _mm_set1_epi8(static_cast<char>(least)));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, clamped)) == 0xFFFF;
  }
  /// Both numbers of a pair times a row's, where the products are bf16.
  static Dwords times(Dwords w, Reg scale) {
    const Dwords low = reinterpret_cast<Dwords>(mul(low_bf16(w), scale));
    const Dwords high = reinterpret_cast<Dwords>(mul(high_bf16(w), scale));
    return _mm512_or_si512(_mm512_srli_epi32(low, 16),
                           _mm512_and_si512(high, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  // ---- integers (multiply_digits.h)

  /// Unsigned bytes of `codes` times signed ones of `x`, four neighbours added.
  static Dwords dot_bytes(Dwords sum, Dwords codes, Dwords x) { return _mm512_dpbusd_epi32(sum, codes, x); }
  static Dwords dot_words(Dwords sum, Dwords codes, Dwords x) { return _mm512_dpwssd_epi32(sum, codes, x); }
};

}  // namespace
}  // namespace sluice::cpu
