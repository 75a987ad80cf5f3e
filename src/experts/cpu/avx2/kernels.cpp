// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C: the vector, and how 4-bit codes become float32. Compiled with flags of its own; see
// kernel.h for what must therefore not appear here.
#include <immintrin.h>

#include "experts/cpu/avx2/table.h"
#include "experts/cpu/common/multiply.h"

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
  static void prefetch(const std::byte* at) { _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0); }
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

  static Reg load_f16(const std::byte* at) { return _mm256_cvtph_ps(load_16(at)); }

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

/// 32 bytes hold 8 columns of 8 rows: the low nibbles the first four columns, the high nibbles the others.
/// Within each 16 bytes (4 rows), row j has bytes 2j, 2j + 1, 8 + 2j and 9 + 2j, so that lane = row after the
/// unpacking: 8 instructions for 32 values, and 1 or 2 to take the nibbles apart.
struct Fp4 {
  static constexpr int kStep = 4;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void step(const std::byte* const (&codes)[B], int s, Use&& use) {
    __m256i low[B], high[B], pair[B];
    __m256 w[B];
    for (int b = 0; b < B; ++b) {
      const __m256i both = Vector::load_dwords(codes[b] + s / 2 * 32);
      const __m256i code =
          _mm256_and_si256(s % 2 == 0 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(0x0F));
      low[b] = _mm256_shuffle_epi8(low_bytes(), code);
      high[b] = _mm256_shuffle_epi8(high_bytes(), code);
    }
    for (int b = 0; b < B; ++b) pair[b] = _mm256_unpacklo_epi8(low[b], high[b]);
    for (int b = 0; b < B; ++b) w[b] = Vector::low_bf16(pair[b]);
    use(4 * s, w);
    for (int b = 0; b < B; ++b) w[b] = Vector::high_bf16(pair[b]);
    use(4 * s + 1, w);
    for (int b = 0; b < B; ++b) pair[b] = _mm256_unpackhi_epi8(low[b], high[b]);
    for (int b = 0; b < B; ++b) w[b] = Vector::low_bf16(pair[b]);
    use(4 * s + 2, w);
    for (int b = 0; b < B; ++b) w[b] = Vector::high_bf16(pair[b]);
    use(4 * s + 3, w);
  }

  /// The two bytes of the bf16 that each e2m1 code stands for: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives.
  static __m256i high_bytes() {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -0x80,
                                                     -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  }
  static __m256i low_bytes() {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0x00,
                                                     0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40));
  }
};

constexpr KernelTable kTable = make_table<Vector, Fp4>();

}  // namespace

const KernelTable* const kAvx2Table = &kTable;

}  // namespace sluice::cpu
