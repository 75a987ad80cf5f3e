// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C: the vector, and how each kind of code becomes float32. Compiled with flags of its
// own; see kernel.h for what must therefore not appear here.
#include <immintrin.h>

#include <cstdint>

#include "experts/cpu/avx2/table.h"
#include "experts/cpu/common/layout.h"
#include "experts/cpu/common/multiply.h"

namespace sluice::cpu {
namespace {

struct Vector {
  using Reg = __m256;
  static constexpr int kLanes = kAvx2Lanes;
  /// 12 sums, 2 weights and 1 input in 16 registers.
  static constexpr int kTile = 6;

  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg load(const float* at) { return _mm256_loadu_ps(at); }
  static void store(float* at, Reg v) { _mm256_storeu_ps(at, v); }
  static Reg broadcast(const float* at) { return _mm256_broadcast_ss(at); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
};

__m256i load_bytes(const std::byte* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
__m128i load_half(const std::byte* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
__m128i load_eight(const std::byte* at) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)); }

/// A dword of two bf16, each as float32.
__m256 low_bf16(__m256i pair) { return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)); }
__m256 high_bf16(__m256i pair) {
  return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

/// Bytes of e4m3 in the high halves of words, as f16 that are 2^8 too small: sign, then the seven other bits
/// one place lower, below an exponent bit that is always 0. The shift copies the sign into that bit.
/// Subnormals come out right.
__m256i e4m3_as_f16(__m256i words) {
  return _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(static_cast<short>(0xBFFF)));
}
__m128i e4m3_as_f16(__m128i words) {
  return _mm_and_si128(_mm_srai_epi16(words, 1), _mm_set1_epi16(static_cast<short>(0xBFFF)));
}

// ---- codes: columns<B>(codes, use) decodes kChain columns of B blocks and calls use(k, w[B]) in order of k

struct Fp4 {
  static constexpr float kUnit = 1.0f;

  /// The two bytes of the bf16 that each e2m1 code stands for: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives.
  static __m256i high_bytes() {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, -0x80,
                                                     -0x41, -0x41, -0x41, -0x40, -0x40, -0x40, -0x40));
  }
  static __m256i low_bytes() {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(0x00, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0x00,
                                                     0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40));
  }

  /// 32 bytes hold 8 columns of 8 rows: the low nibbles the first four columns, the high nibbles the others.
  /// Within each 16 bytes (4 rows), row j has bytes 2j, 2j + 1, 8 + 2j and 9 + 2j, so that lane = row after
  /// the unpacking.
  template <int B, class Use>
  [[gnu::always_inline]] static inline void columns(const std::byte* const (&codes)[B], Use&& use) {
    const __m256i nibble = _mm256_set1_epi8(0x0F);
#pragma GCC unroll 4
    for (int half = 0; half < 4; ++half) {
      __m256i low[B], high[B];
      for (int b = 0; b < B; ++b) {
        const __m256i both = load_bytes(codes[b] + half / 2 * 32);
        const __m256i code = _mm256_and_si256(half % 2 == 0 ? both : _mm256_srli_epi16(both, 4), nibble);
        low[b] = _mm256_shuffle_epi8(low_bytes(), code);
        high[b] = _mm256_shuffle_epi8(high_bytes(), code);
      }
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) {
        __m256i pair[B];
        __m256 w[B];
        for (int b = 0; b < B; ++b)
          pair[b] = q == 0 ? _mm256_unpacklo_epi8(low[b], high[b]) : _mm256_unpackhi_epi8(low[b], high[b]);
        for (int b = 0; b < B; ++b) w[b] = low_bf16(pair[b]);
        use(half * 4 + q * 2, w);
        for (int b = 0; b < B; ++b) w[b] = high_bf16(pair[b]);
        use(half * 4 + q * 2 + 1, w);
      }
    }
  }
};

struct E4m3 {
  static constexpr float kUnit = 256.0f;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void columns(const std::byte* const (&codes)[B], Use&& use) {
#pragma GCC unroll 8
    for (int two = 0; two < 8; ++two) {
      __m256i half[B];
      __m256 w[B];
      for (int b = 0; b < B; ++b) {
        // Sign-extended to words, shifted to the top: the byte in the high half.
        const __m256i words = _mm256_cvtepi8_epi16(load_half(codes[b] + two * 16));
        half[b] = e4m3_as_f16(_mm256_slli_epi16(words, 8));
      }
      for (int b = 0; b < B; ++b) w[b] = _mm256_cvtph_ps(_mm256_castsi256_si128(half[b]));
      use(two * 2, w);
      for (int b = 0; b < B; ++b) w[b] = _mm256_cvtph_ps(_mm256_extracti128_si256(half[b], 1));
      use(two * 2 + 1, w);
    }
  }
};

struct F16 {
  static constexpr float kUnit = 1.0f;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void columns(const std::byte* const (&codes)[B], Use&& use) {
#pragma GCC unroll 16
    for (int k = 0; k < kChain; ++k) {
      __m256 w[B];
      for (int b = 0; b < B; ++b) w[b] = _mm256_cvtph_ps(load_half(codes[b] + k * 16));
      use(k, w);
    }
  }
};

struct Bf16 {
  static constexpr float kUnit = 1.0f;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void columns(const std::byte* const (&codes)[B], Use&& use) {
#pragma GCC unroll 8
    for (int two = 0; two < 8; ++two) {
      __m256i pair[B];
      __m256 w[B];
      for (int b = 0; b < B; ++b) pair[b] = load_bytes(codes[b] + two * 32);
      for (int b = 0; b < B; ++b) w[b] = low_bf16(pair[b]);
      use(two * 2, w);
      for (int b = 0; b < B; ++b) w[b] = high_bf16(pair[b]);
      use(two * 2 + 1, w);
    }
  }
};

struct F32 {
  static constexpr float kUnit = 1.0f;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void columns(const std::byte* const (&codes)[B], Use&& use) {
#pragma GCC unroll 16
    for (int k = 0; k < kChain; ++k) {
      __m256 w[B];
      for (int b = 0; b < B; ++b) w[b] = Vector::load(reinterpret_cast<const float*>(codes[b]) + k * 8);
      use(k, w);
    }
  }
};

// ---- scales: scale(at) is the scale of a group, a lane a row

struct NoScale {
  static constexpr float kUnit = 1.0f;
  static __m256 scale(const std::byte*) { return _mm256_set1_ps(1.0f); }
};

struct E8m0Scale {
  static constexpr float kUnit = 1.0f;
  /// Code 0 is 2^-127, a subnormal. 255 becomes infinity here and NaN by the row's factor.
  static __m256 scale(const std::byte* at) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtepu8_epi32(load_eight(at)), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(exponent, _mm256_set1_epi32(0x00400000)));
  }
};

struct E4m3Scale {
  static constexpr float kUnit = 256.0f;
  static __m256 scale(const std::byte* at) {
    return _mm256_cvtph_ps(e4m3_as_f16(_mm_unpacklo_epi8(_mm_setzero_si128(), load_eight(at))));
  }
};

struct FloatScale {
  static constexpr float kUnit = 1.0f;
  static __m256 scale(const std::byte* at) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(at)); }
};

template <const Layout& kTheLayout, class CodesOf, class ScaleOf>
struct Decoder : CodesOf, ScaleOf {
  static constexpr Layout kLayout = kTheLayout;
  /// What the decoders left out, a power of two, multiplied at the end.
  static constexpr float kUnit = CodesOf::kUnit * ScaleOf::kUnit;
};

template <const Layout& kTheLayout, class CodesOf, class ScaleOf = NoScale>
constexpr Multiply kMultiply = Product<Vector, Decoder<kTheLayout, CodesOf, ScaleOf>>::run;

constexpr KernelTable kTable{
    .lanes = kAvx2Lanes,
    .f32 = kMultiply<kF32, F32>,
    .f16 = kMultiply<kF16, F16>,
    .bf16 = kMultiply<kBf16, Bf16>,
    .mxfp4 = kMultiply<kMxfp4, Fp4, E8m0Scale>,
    .nvfp4 = kMultiply<kNvfp4, Fp4, E4m3Scale>,
    .mxfp8 = kMultiply<kMxfp8, E4m3, E8m0Scale>,
    .fp8_block128 = kMultiply<kFp8Block128, E4m3, FloatScale>,
    .fp8_rows = kMultiply<kFp8Rows, E4m3>,
};

}  // namespace

const KernelTable* const kAvx2Table = &kTable;

}  // namespace sluice::cpu
