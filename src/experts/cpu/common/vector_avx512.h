// SPDX-License-Identifier: Apache-2.0
// AVX-512 (F, BW, DQ, VL): the vector, and how 4-bit codes become float32. Only the kernels.cpp of a backend
// with these instructions includes this; everything is in an anonymous namespace (kernel.h says why).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace sluice::cpu {
namespace {

struct Vector {
  using Reg = __m512;
  using Dwords = __m512i;
  using Words = __m512i;
  static constexpr int kLanes = 16;
  /// 24 sums, 2 weights and 1 input in 32 registers.
  static constexpr int kTile = 12;
  /// Twice 12 sums, 2 weights, 1 input, 2 lines and the table.
  static constexpr int kDirect = 6;

  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg set(float value) { return _mm512_set1_ps(value); }
  static Reg load(const float* at) { return _mm512_loadu_ps(at); }
  static void store(float* at, Reg v) { _mm512_storeu_ps(at, v); }
  static Reg broadcast(const float* at) { return _mm512_set1_ps(*at); }
  /// Into the second level: bf16 weights come at 36.7 GB/s instead of 33.4 (Sapphire Rapids, 2 threads),
  /// others as fast. Not _mm_prefetch: avx2/kernels.cpp says why.
  static void prefetch(const std::byte* at) { asm volatile("prefetcht1 %0" : : "m"(*at)); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }

  static __m256i load_32(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  static __m128i load_16(const std::byte* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  static Dwords load_dwords(const std::byte* at) { return _mm512_loadu_si512(at); }

  // ---- integers (multiply_digits.h)

  /// Keeps a sum where it is written: g++ 12 puts integer additions off until it has no register left for the
  /// terms, and spills them.
  static Dwords here(Dwords v) {
    asm("" : "+v"(v));
    return v;
  }

  /// Tokens that share a load of codes: 24 sums, 2 codes and 2 inputs in 32 registers.
  static constexpr int kDigitTile = 6;
  /// 12 sums of dwords, 12 of floats, 2 codes and 1 input.
  static constexpr int kInt8Tile = 6, kInt8WordTile = 6;

  static Dwords broadcast_dword(const std::int32_t* at) { return _mm512_set1_epi32(*at); }
  static Dwords load_words(const std::int16_t* at) { return _mm512_load_si512(at); }
  static void store_words(std::int16_t* at, Dwords v) { _mm512_store_si512(at, v); }
  static Dwords low_nibbles(Dwords v) { return _mm512_and_si512(v, _mm512_set1_epi8(0x0F)); }
  static Dwords high_nibbles(Dwords v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
  /// 12 + twice the value.
  static Dwords e2m1_codes(Dwords nibbles) {
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)),
        nibbles);
  }
  static Dwords set_dword(std::int32_t value) { return _mm512_set1_epi32(value); }
  static Dwords set_words(int value) { return _mm512_set1_epi16(static_cast<short>(value)); }
  static Dwords and_bits(Dwords a, Dwords b) { return _mm512_and_si512(a, b); }
  static Dwords or_bits(Dwords a, Dwords b) { return _mm512_or_si512(a, b); }
  static Dwords minus(Dwords dwords) { return _mm512_sub_epi32(_mm512_setzero_si512(), dwords); }
  /// Of dwords.
  template <int kBits>
  static Dwords shift_left(Dwords v) {
    return _mm512_slli_epi32(v, kBits);
  }
  template <int kBits>
  static Dwords shift_right(Dwords v) {
    return _mm512_srli_epi32(v, kBits);
  }
  template <int kBits>
  static Dwords shift_right_signed(Dwords v) {
    return _mm512_srai_epi32(v, kBits);
  }
  /// A byte a dword.
  static Dwords load_bytes(const std::byte* at) { return _mm512_cvtepu8_epi32(load_16(at)); }
  static Dwords even_bytes(Dwords v) { return _mm512_and_si512(v, _mm512_set1_epi16(0x00FF)); }
  static Dwords odd_bytes(Dwords v) { return _mm512_srli_epi16(v, 8); }
  /// Unsigned bytes of `codes` times signed ones of `x`, neighbours added.
  static Dwords multiply_bytes(Dwords codes, Dwords x) { return _mm512_maddubs_epi16(codes, x); }
  static Dwords multiply_words(Dwords codes, Dwords x) { return _mm512_madd_epi16(codes, x); }
  /// Word by word.
  static Dwords multiply_low_words(Dwords a, Dwords b) { return _mm512_mullo_epi16(a, b); }
  static Dwords add_words(Dwords a, Dwords b) { return here(_mm512_add_epi16(a, b)); }
  static Dwords add_dwords(Dwords a, Dwords b) { return here(_mm512_add_epi32(a, b)); }
  /// Neighbouring words, as dwords.
  static Dwords add_pairs(Dwords words) { return _mm512_madd_epi16(words, _mm512_set1_epi16(1)); }
  static Reg to_float(Dwords v) { return _mm512_cvtepi32_ps(v); }

  static Reg load_f16(const std::byte* at) { return _mm512_cvtph_ps(load_32(at)); }
  static Reg load_bf16(const std::byte* at) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_32(at)), 16));
  }

  /// The two bf16 of a dword.
  static Reg low_bf16(Dwords pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); }
  static Reg high_bf16(Dwords pair) {
    return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  /// Two columns of e4m3 as f16 that are 2^8 too small: the sign, an exponent bit that is always 0 and that
  /// the shift of the sign-extended byte has filled with the sign, then the other seven bits. Subnormals come
  /// out right.
  static Words load_e4m3(const std::byte* at) {
    const __m512i words = _mm512_slli_epi16(_mm512_cvtepi8_epi16(load_32(at)), 7);
    return _mm512_and_si512(words, _mm512_set1_epi16(static_cast<short>(0xBFFF)));
  }
  static Reg first_f16(Words words) { return _mm512_cvtph_ps(_mm512_castsi512_si256(words)); }
  static Reg second_f16(Words words) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1)); }

  static Reg load_e4m3_scales(const std::byte* at) {
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_16(at)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0xBFFF))));
  }
  static Reg load_e8m0(const std::byte* at) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_cvtepu8_epi32(load_16(at)), 23);
    return _mm512_castsi512_ps(_mm512_max_epi32(exponent, _mm512_set1_epi32(0x00400000)));
  }
};

/// 64 bytes hold 8 columns of 16 rows, a dword a row, nibble i column i. The look-up reads the low four bits
/// of a dword and ignores what is above them: 2 instructions for 16 values.
struct Fp4 {
  static constexpr int kStep = 8;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void step(const std::byte* const (&codes)[B], int s, Use&& use) {
    __m512i line[B];
    for (int b = 0; b < B; ++b) line[b] = Vector::load_dwords(codes[b] + 64 * s);
#pragma GCC unroll 8
    for (int i = 0; i < kStep; ++i) {
      __m512 w[B];
      for (int b = 0; b < B; ++b) w[b] = _mm512_permutexvar_ps(_mm512_srli_epi32(line[b], 4 * i), values());
      use(kStep * s + i, w);
    }
  }

  static __m512 values() {
    return _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                          -3.0f, -4.0f, -6.0f);
  }
};

}  // namespace
}  // namespace sluice::cpu
