// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C: the vector, and how 4-bit codes become float32. Compiled with flags of its own; see
// kernel.h for what must therefore not appear here.
#include <immintrin.h>

#include <cstdint>

#include "experts/cpu/avx2/table.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/multiply_int8.h"

namespace sluice::cpu {
namespace {

struct Vector {
  using Reg = __m256;
  using Dwords = __m256i;
  using Words = __m256i;
  static constexpr int kLanes = kAvx2Lanes;
  /// 12 sums, 2 weights and 1 input in 16 registers.
  static constexpr int kTile = 6;
  /// Tokens for which decoding in registers beats a panel: 66 GFLOP/s and 59 at 4 tokens, a core of an EPYC
  /// Milan with a peak of 102 (mxfp4, K = 2880).
  static constexpr int kDirect = 4;

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg set(float value) { return _mm256_set1_ps(value); }
  static Reg load(const float* at) { return _mm256_loadu_ps(at); }
  static void store(float* at, Reg v) { _mm256_storeu_ps(at, v); }
  static Reg broadcast(const float* at) { return _mm256_broadcast_ss(at); }
  /// Not _mm_prefetch: g++ 12 takes a function of nothing else for one without effects, and leaves out the
  /// calls that it has not inlined by then. MXFP4 and NVFP4 at one token had no prefetch at all.
  static void prefetch(const std::byte* at) { asm volatile("prefetcht0 %0" : : "m"(*at)); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }

  static __m128i load_16(const std::byte* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  static __m128i load_8(const std::byte* at) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)); }
  static Dwords load_dwords(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }

  // ---- integers (multiply_digits.h)

  /// Keeps a sum where it is written: g++ 12 puts integer additions off until it has no register left for the
  /// terms, and spills them (26 GFLOP/s and 55, a core).
  static Dwords here(Dwords v) {
    asm("" : "+x"(v));
    return v;
  }

  /// Tokens that share a load of codes: 8 sums, 2 codes and 2 inputs in 16 registers.
  static constexpr int kDigitTile = 2;
  /// 4 sums of words, 4 of dwords, 4 of floats, 2 codes and 1 input; or, where all products fit words, 6 sums
  /// of those, 6 of floats, 2 codes and 1 input.
  static constexpr int kInt8Tile = 2, kInt8WordTile = 3;

  static Dwords broadcast_dword(const std::int32_t* at) {
    return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(at)));
  }
  static Dwords load_words(const std::int16_t* at) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  }
  static void store_words(std::int16_t* at, Dwords v) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(at), v);
  }
  static Dwords low_nibbles(Dwords v) { return _mm256_and_si256(v, _mm256_set1_epi8(0x0F)); }
  static Dwords high_nibbles(Dwords v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
  /// 12 + twice the value.
  static Dwords e2m1_codes(Dwords nibbles) {
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)),
        nibbles);
  }
  static Dwords set_dword(std::int32_t value) { return _mm256_set1_epi32(value); }
  static Dwords set_words(int value) { return _mm256_set1_epi16(static_cast<short>(value)); }
  static Dwords and_bits(Dwords a, Dwords b) { return _mm256_and_si256(a, b); }
  static Dwords or_bits(Dwords a, Dwords b) { return _mm256_or_si256(a, b); }
  static Dwords minus(Dwords dwords) { return _mm256_sub_epi32(_mm256_setzero_si256(), dwords); }
  /// Of dwords.
  template <int kBits>
  static Dwords shift_left(Dwords v) {
    return _mm256_slli_epi32(v, kBits);
  }
  template <int kBits>
  static Dwords shift_right(Dwords v) {
    return _mm256_srli_epi32(v, kBits);
  }
  template <int kBits>
  static Dwords shift_right_signed(Dwords v) {
    return _mm256_srai_epi32(v, kBits);
  }
  /// A byte a dword.
  static Dwords load_bytes(const std::byte* at) { return _mm256_cvtepu8_epi32(load_8(at)); }
  static Dwords even_bytes(Dwords v) { return _mm256_and_si256(v, _mm256_set1_epi16(0x00FF)); }
  static Dwords odd_bytes(Dwords v) { return _mm256_srli_epi16(v, 8); }
  /// Unsigned bytes of `codes` times signed ones of `x`, neighbours added.
  static Dwords multiply_bytes(Dwords codes, Dwords x) { return _mm256_maddubs_epi16(codes, x); }
  static Dwords multiply_words(Dwords codes, Dwords x) { return _mm256_madd_epi16(codes, x); }
  /// Word by word.
  static Dwords multiply_low_words(Dwords a, Dwords b) { return _mm256_mullo_epi16(a, b); }
  static Dwords add_words(Dwords a, Dwords b) { return here(_mm256_add_epi16(a, b)); }
  static Dwords add_dwords(Dwords a, Dwords b) { return here(_mm256_add_epi32(a, b)); }
  /// Neighbouring words, as dwords.
  static Dwords add_pairs(Dwords words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }
  static Reg to_float(Dwords v) { return _mm256_cvtepi32_ps(v); }

  static Reg load_f16(const std::byte* at) { return _mm256_cvtph_ps(load_16(at)); }
  static Reg load_bf16(const std::byte* at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(at)), 16));
  }

  /// The two bf16 of a dword.
  static Reg low_bf16(Dwords pair) { return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)); }
  static Reg high_bf16(Dwords pair) {
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  /// Two columns of e4m3 as f16 that are 2^8 too small: the sign, an exponent bit that is always 0 and that
  /// the shift of the sign-extended byte has filled with the sign, then the other seven bits. Subnormals come
  /// out right.
  static Words load_e4m3(const std::byte* at) {
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_16(at)), 7);
    return _mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0xBFFF)));
  }
  static Reg first_f16(Words words) { return _mm256_cvtph_ps(_mm256_castsi256_si128(words)); }
  static Reg second_f16(Words words) { return _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1)); }

  static Reg load_e4m3_scales(const std::byte* at) {
    const __m128i words = _mm_slli_epi16(_mm_cvtepi8_epi16(load_8(at)), 7);
    return _mm256_cvtph_ps(_mm_and_si128(words, _mm_set1_epi16(static_cast<short>(0xBFFF))));
  }
  static Reg load_e8m0(const std::byte* at) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtepu8_epi32(load_8(at)), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(exponent, _mm256_set1_epi32(0x00400000)));
  }
};

/// 32 bytes hold 8 columns of 8 rows, a dword a row, nibble i column i. Only rows that have no digits come
/// this way (kernel.h), so this is short rather than fast.
struct Fp4 {
  static constexpr int kStep = 8;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void step(const std::byte* const (&codes)[B], int s, Use&& use) {
    __m256i line[B];
    for (int b = 0; b < B; ++b) line[b] = Vector::load_dwords(codes[b] + 32 * s);
#pragma GCC unroll 8
    for (int i = 0; i < kStep; ++i) {
      __m256 w[B];
      for (int b = 0; b < B; ++b) w[b] = signed_value(line[b], 4 * i);
      use(kStep * s + i, w);
    }
  }

  /// The look-up reads the low three bits of a dword; the fourth is the sign.
  static __m256 signed_value(__m256i line, int shift) {
    const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256 value = _mm256_permutevar8x32_ps(magnitudes, _mm256_srli_epi32(line, shift));
    const __m256 sign = _mm256_castsi256_ps(_mm256_slli_epi32(line, 28 - shift));
    return _mm256_or_ps(value, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
  }
};

constexpr KernelTable kTable = make_table<Vector, Fp4>();
constexpr KernelTable kInt8Table = make_int8_table<Vector, Fp4>();

}  // namespace

const KernelTable* const kAvx2Table = &kTable;
const KernelTable* const kAvx2Int8Table = &kInt8Table;

}  // namespace sluice::cpu
