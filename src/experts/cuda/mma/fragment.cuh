// SPDX-License-Identifier: Apache-2.0
// From a lane's stored part of a block to the A operands of its products, and the products of 64 columns.
#pragma once

#include <cuda_fp16.h>

#include "experts/cuda/common/layout.h"
#include "experts/cuda/common/unpack.h"
#include "experts/cuda/mma/ptx.cuh"

namespace sluice::cuda {

/// A block is multiplied in two halves of 64 columns: steps 0 to 3 and 4 to 7.
inline constexpr int kHalves = 2, kHalfSteps = kSteps / kHalves;

/// Pieces of 16 bytes that a lane has of a half of a block's values.
constexpr int half_pieces(Storage storage) { return value_bytes(storage) / (512 * kHalves); }

/// Sums of half a block that begin at zero. Integers of groups of 16 or 32 columns scale each by itself.
constexpr int chains(Storage storage) {
  return scale_parts(storage) == 1 ? 1 : kBlockColumns / kHalves / group_columns(storage);
}

/// Scales of a block, or of a part of one (scale_parts), as a lane holds them.
template <Storage kStorage>
struct Scales {
  static constexpr bool kPerBlock = kStorage == Storage::fp8_scaled;
  std::uint32_t bytes = 0;  // of its rows and columns
  float2 rows = {1, 1};     // of rows 0 to 7 and 8 to 15
};

template <Storage kStorage>
requires(is_integer(kStorage) && !has_minimums(kStorage)) struct Scales<kStorage> {
  static constexpr bool kPerBlock = false;
  float2 rows[chains(kStorage)];  // rows g and g + 8, of every chain
  std::uint32_t zeros;            // a byte each
};

template <Storage kStorage>
requires(has_minimums(kStorage)) struct Scales<kStorage> {
  static constexpr bool kPerBlock = false;
  float2 rows[chains(kStorage)];
  float2 rest[chains(kStorage)];  // what the zero points leave of minus the minimums
  std::uint32_t zeros;
};

/// Of half a block of K quants: numbers of binary16 times factors, exactly.
template <Storage kStorage, class From>
__device__ Scales<kStorage> load_factors(From from, int lane) {
  Scales<kStorage> scales;
  const auto byte = [](std::uint32_t word, int i) { return static_cast<float>(word >> (8 * i) & 0xFFu); };
  if constexpr (has_minimums(kStorage)) {
    const uint2 numbers = read<uint2>(from, lane / 4);
    const float2 scale = __half22float2(reinterpret_cast<const __half2&>(numbers.x));
    const float2 minimum = __half22float2(reinterpret_cast<const __half2&>(numbers.y));
    const From factors = from + 8 * sizeof(uint2);
    const auto of_scales = read<std::uint32_t>(factors, lane / 4);
    const auto of_minimums = read<std::uint32_t>(factors + 8 * sizeof(std::uint32_t), lane / 4);
    scales.zeros = read<std::uint32_t>(factors + 16 * sizeof(std::uint32_t), lane / 4);
#pragma unroll
    for (int i = 0; i < chains(kStorage); ++i) {
      scales.rows[i] = make_float2(__fmul_rn(scale.x, byte(of_scales, 2 * i)),
                                   __fmul_rn(scale.y, byte(of_scales, 2 * i + 1)));
      scales.rest[i] = make_float2(
          __fmaf_rn(byte(scales.zeros, 2 * i), scales.rows[i].x,
                    -__fmul_rn(minimum.x, byte(of_minimums, 2 * i))),
          __fmaf_rn(byte(scales.zeros, 2 * i + 1), scales.rows[i].y,
                    -__fmul_rn(minimum.y, byte(of_minimums, 2 * i + 1))));
    }
  } else {
    const auto numbers = read<std::uint32_t>(from, lane / 4);
    const float2 scale = __half22float2(reinterpret_cast<const __half2&>(numbers));
    const uint2 factors = read<uint2>(from + 8 * sizeof(std::uint32_t), lane / 4);
    const std::uint32_t words[] = {factors.x, factors.y};
    const auto factor = [&](int i) {
      return static_cast<float>(static_cast<std::int8_t>(words[i / 4] >> (8 * (i % 4)) & 0xFFu));
    };
#pragma unroll
    for (int i = 0; i < chains(kStorage); ++i)
      scales.rows[i] =
          make_float2(__fmul_rn(scale.x, factor(2 * i)), __fmul_rn(scale.y, factor(2 * i + 1)));
    scales.zeros = kQ6KZero * 0x01010101u;
  }
  return scales;
}

/// Reads them where a block, or a stage, has them.
template <Storage kStorage, class From>
__device__ Scales<kStorage> load_scales(From from, int lane) {
  if constexpr (has_factors(kStorage)) return load_factors<kStorage>(from, lane);
  Scales<kStorage> scales;
  if constexpr (chains(kStorage) == 2) {
    const float4 four = read<float4>(from, lane / 4);
    scales.rows[0] = make_float2(four.x, four.y);
    scales.rows[1] = make_float2(four.z, four.w);
    scales.zeros = read<std::uint32_t>(from + 8 * sizeof(float4), lane / 4);
  } else if constexpr (is_integer(kStorage)) {
    scales.rows[0] = read<float2>(from, lane / 4);
    scales.zeros = read<std::uint16_t>(from + 8 * sizeof(float2), lane / 4);
  } else if constexpr (scale_bytes(kStorage) == 2 * kLanes) {
    scales.bytes = read<std::uint16_t>(from, lane);
  } else if constexpr (scale_bytes(kStorage) == 4 * kLanes) {
    scales.bytes = read<std::uint32_t>(from, lane);
  } else if constexpr (Scales<kStorage>::kPerBlock) {
    scales.rows = read<float2>(from, 0);
  }
  return scales;
}

/// What a lane multiplies the values of a half by, of rows g and g + 8.
template <Storage kStorage>
__device__ void multipliers(const Scales<kStorage>& scales, int half, std::uint32_t (&m)[2]) {
  if constexpr (kStorage == Storage::fp4_e4m3) {
    m[0] = e4m3_multiplier(scales.bytes >> (8 * half) & 0xFFu);
    m[1] = e4m3_multiplier(scales.bytes >> (16 + 8 * half) & 0xFFu);
  } else if constexpr (kStorage == Storage::fp4_e8m0 || kStorage == Storage::fp8_e8m0) {
    m[0] = e8m0_multiplier(scales.bytes & 0xFFu);
    m[1] = e8m0_multiplier(scales.bytes >> 8 & 0xFFu);
  } else {
    m[0] = m[1] = kFp8Unscaled;
  }
}

/// Weights of half a block: registers a0 to a3 of each step. F16 has a second term.
template <Storage kStorage>
struct Fragment {
  static constexpr int kTerms = kStorage == Storage::f16 ? 2 : 1;
  static constexpr int kProducts = kTerms * kHalfSteps;                // with every term of the input
  static constexpr int kChainProducts = kProducts / chains(kStorage);  // and of those, a chain's
  std::uint32_t of[kTerms][kHalfSteps][4];
};

/// Codes minus zero points, times 2^-6.
template <Storage kStorage>
__device__ Fragment<kStorage> integer_fragment(const uint4* values, const Scales<kStorage>& scales) {
  Fragment<kStorage> a;
  constexpr int kBits = value_bits(kStorage), kRegisters = 16 / kBits, kWords = 8 / kRegisters;
#pragma unroll
  for (int pair = 0; pair < kHalfSteps / 2; ++pair) {
    const std::uint32_t zeros = chains(kStorage) > 1 ? scales.zeros >> (16 * pair) : scales.zeros;
    const std::uint32_t minus[] = {times((zeros & 0xFFu) * kBothHalves, kZeroUp),
                                   times((zeros >> 8 & 0xFFu) * kBothHalves, kZeroUp)};
    const uint4 four = values[pair * kWords / 4];
    const std::uint32_t all[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t word = all[(pair * kWords + i / kRegisters) % 4];
      a.of[0][2 * pair + i / 4][i % 4] =
          times_plus(unpack_integers<kBits>(word, i % kRegisters), kIntegerUp, minus[i % 2]);
    }
  }
  return a;
}

template <Storage kStorage>
__device__ Fragment<kStorage> fragment(const uint4* values, const std::uint32_t (&m)[2]) {
  Fragment<kStorage> a;
  constexpr int kBits = value_bits(kStorage);
#pragma unroll
  for (int pair = 0; pair < kHalfSteps / 2; ++pair) {
    std::uint32_t out[8];
    if constexpr (kBits == 4) {
      const uint4 words = values[0];
      if (pair == 0)
        unpack_fp4(words.x, words.y, out);
      else
        unpack_fp4(words.z, words.w, out);
    } else if constexpr (kBits == 8) {
      const uint4 words = values[pair];
      const std::uint32_t in[] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = unpack_fp8(in[i / 2] >> (16 * (i % 2)));
    } else {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint4 words = values[2 * pair + step];
        const std::uint32_t in[] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kStorage == Storage::f16)
            split_f16(in[i], a.of[0][2 * pair + step][i], a.of[1][2 * pair + step][i]);
          else
            a.of[0][2 * pair + step][i] = in[i];
        }
      }
    }
    if constexpr (kBits < 16) {
#pragma unroll
      for (int i = 0; i < 8; ++i) a.of[0][2 * pair + i / 4][i % 4] = times(out[i], m[i % 2]);
    }
  }
  return a;
}

template <Storage kStorage>
__device__ Fragment<kStorage> fragment(const uint4* values, const Scales<kStorage>& scales, int half) {
  if constexpr (is_integer(kStorage)) {
    return integer_fragment<kStorage>(values, scales);
  } else {
    std::uint32_t m[2];
    multipliers(scales, half, m);
    return fragment<kStorage>(values, m);
  }
}

/// One term of 64 columns of eight tokens: a lane's 16 neighbouring columns of one of them.
struct Columns {
  uint4 of[2];
};

/// One of the Fragment::kProducts products of 64 columns and a term of the input. A tensor core cuts what it
/// adds to the exponent of the largest, the sum so far included, so sums begin anew with the first of them
/// and are added to others in float32. Callers do the same step of several sums in turn: each waits for its
/// last.
template <Storage kStorage>
__device__ void multiply_step(const Fragment<kStorage>& a, int product, const Columns& b, bool later_term,
                              float (&sums)[4]) {
  const int step = product % kHalfSteps;
  const uint4 four = b.of[step / 2];
  const std::uint32_t b0 = step % 2 == 0 ? four.x : four.z, b1 = step % 2 == 0 ? four.y : four.w;
  if constexpr (value_bits(kStorage) < 16) {
    mma(sums, a.of[0][step], b0, b1);
  } else if (Fragment<kStorage>::kTerms == 2 && product < kHalfSteps) {
    // An infinite weight's second term is zero: an infinite input must not meet it.
    mma(sums, a.of[Fragment<kStorage>::kTerms - 1][step], only_finite(b0), only_finite(b1));
  } else if (later_term) {
    // Later terms of an infinite input are zeros, and must not meet an infinite weight.
    std::uint32_t weights[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[i] = only_finite(a.of[0][step][i]);
    mma(sums, weights, b0, b1);
  } else {
    mma(sums, a.of[0][step], b0, b1);
  }
}

/// The same of a weight of 1 in every place, as integers are stored: the sums of the inputs, which minimums
/// are multiplied by.
__device__ inline void add_inputs(int product, const Columns& b, float (&sums)[4]) {
  constexpr std::uint32_t kOnes = 0x3C803C80u;  // 2^-6
  constexpr std::uint32_t ones[] = {kOnes, kOnes, kOnes, kOnes};
  const int step = product % kHalfSteps;
  const uint4 four = b.of[step / 2];
  mma(sums, ones, step % 2 == 0 ? four.x : four.z, step % 2 == 0 ? four.y : four.w);
}

/// Scales of a block that its values do not have in them yet.
template <Storage kStorage>
__device__ void scale_sums(const Scales<kStorage>& scales, float (&sums)[4]) {
  if constexpr (Scales<kStorage>::kPerBlock) {
    sums[0] = __fmul_rn(scales.rows.x, sums[0]);
    sums[1] = __fmul_rn(scales.rows.x, sums[1]);
    sums[2] = __fmul_rn(scales.rows.y, sums[2]);
    sums[3] = __fmul_rn(scales.rows.y, sums[3]);
  }
}

/// The sum of a chain's terms, element `i` of a lane's, onto those before. Integers are scaled here; with
/// minimums `inputs` is the sum of what the weights were multiplied by.
template <Storage kStorage>
__device__ float add_chain(const Scales<kStorage>& scales, int chain, int i, float terms, float sum,
                           [[maybe_unused]] float inputs = 0) {
  if constexpr (has_minimums(kStorage)) {
    const float2 scale = scales.rows[chain], rest = scales.rest[chain];
    const float others = __fmul_rn(i < 2 ? rest.x : rest.y, inputs);
    return __fadd_rn(sum, __fmaf_rn(i < 2 ? scale.x : scale.y, terms, others));
  }
  if constexpr (is_integer(kStorage))
    return __fmaf_rn(i < 2 ? scales.rows[chain].x : scales.rows[chain].y, terms, sum);
  else
    return __fadd_rn(sum, terms);
}

}  // namespace sluice::cuda
