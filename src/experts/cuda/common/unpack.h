// SPDX-License-Identifier: Apache-2.0
// From stored words to the registers of an A operand, as the kernels do it. Every function runs on both sides
// of the bus, so that a machine without a card tests all codes and scales.
//
// A bf16 with the sign of an e2m1 in bit 15 and its three other bits in 8 to 6 is its value times 2^-126, and
// one with the seven bits of an e4m3 in 10 to 4 is its value times 2^-120, subnormal values included. One
// product with a bf16 takes both that and the scale in, exactly: two significant bits by four, or by one.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "core/hd.h"
#include "experts/cuda/common/layout.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cuda {

SLUICE_HD constexpr std::uint32_t rotate_left(std::uint32_t word, int by) {
  return by == 0 ? word : word << by | word >> (32 - by);
}

// ---- e2m1: sixteen in two words

/// Sign and magnitude in both halves of a register.
inline constexpr std::uint32_t kFp4Pattern = 0x81C081C0u;
/// The bits of the first word that no rotation of the pattern has taken; the second lacks others.
inline constexpr std::uint32_t kFp4Rest = 0x06030603u;

/// Registers 0 to 2 are the first word rotated by 0, 4 and 10, registers 3 to 5 the second by 2, 6 and 12,
/// and registers 6 and 7 what is left in both, by 8 and 14. The fields tile 64 bits.
SLUICE_HD void unpack_fp4(std::uint32_t first, std::uint32_t second, std::uint32_t (&out)[8]) {
  const std::uint32_t rest = (first & kFp4Rest) | (second & ~kFp4Rest);
  out[0] = first & kFp4Pattern;
  out[1] = rotate_left(first, 4) & kFp4Pattern;
  out[2] = rotate_left(first, 10) & kFp4Pattern;
  out[3] = rotate_left(second, 2) & kFp4Pattern;
  out[4] = rotate_left(second, 6) & kFp4Pattern;
  out[5] = rotate_left(second, 12) & kFp4Pattern;
  out[6] = rotate_left(rest, 8) & kFp4Pattern;
  out[7] = rotate_left(rest, 14) & kFp4Pattern;
}

struct WordPair {
  std::uint32_t first, second;
};

/// The inverse, of registers that have no other bits than the pattern's.
SLUICE_HD WordPair pack_fp4(const std::uint32_t (&in)[8]) {
  const auto back = [](std::uint32_t value, int by) { return rotate_left(value, (32 - by) % 32); };
  const std::uint32_t rest = back(in[6], 8) | back(in[7], 14);
  return {in[0] | back(in[1], 4) | back(in[2], 10) | (rest & kFp4Rest),
          back(in[3], 2) | back(in[4], 6) | back(in[5], 12) | (rest & ~kFp4Rest)};
}

// ---- e4m3: four in a word, the first two for one register

SLUICE_HD std::uint32_t unpack_fp8(std::uint32_t two_codes) {
  const std::uint32_t high = (two_codes & 0xFFu) << 8 | (two_codes & 0xFF00u) << 16;
  return (high & 0x80008000u) | (high & 0x7F007F00u) >> 4;
}

// ---- integers: eight of two steps, in two words of codes of 4 bits or four of 8 bits

/// The bits of a code of up to eight bits are a bf16 of that many times 2^-133, subnormal or not. One fused
/// product with 2^127 takes it and minus the zero point times 2^-6 in, exactly: code and zero point are eight
/// bits, and so is their difference.
inline constexpr std::uint32_t kIntegerUp = 0x7F007F00u;
/// What the values lack, which is the factor of a row.
inline constexpr float kIntegerBack = 64.0f;

/// Two codes: register `index` of a word's.
template <int kBits>
SLUICE_HD std::uint32_t unpack_integers(std::uint32_t word, int index) {
  return word >> (kBits * index) & (kBits == 4 ? 0x000F000Fu : 0x00FF00FFu);
}

/// -2^127 in both halves, which makes minus zero points times 2^-6 of two zero points' bits; a byte in both
/// halves is byte * kBothHalves.
inline constexpr std::uint32_t kZeroUp = 0xFF00FF00u, kBothHalves = 0x00010001u;

// ---- multipliers: bf16, the same in both halves

/// 2^120, for values that have no scale of their own.
inline constexpr std::uint32_t kFp8Unscaled = (120u + 127u) << 7 | (120u + 127u) << 23;

/// The stored byte of an e8m0 scale is the exponent of the multiplier. One product puts it in both halves.
SLUICE_HD std::uint32_t e8m0_multiplier(std::uint32_t byte) { return byte * 0x00800080u; }

/// That of an e4m3 scale s is s 2^118, whose three upper exponent bits are always ones.
SLUICE_HD std::uint32_t e4m3_multiplier(std::uint32_t byte) { return byte * 0x00100010u + 0x70007000u; }

/// What e4m3 multipliers lack to the 2^126 of the pattern.
inline constexpr float kFp4E4m3Back = 256.0f;

// ---- f16: two bf16 that sum to it

/// Of the two the first has seven bits after its leading one, and neither is zero unless the number is (or is
/// one of the eight smallest), so that an infinite input times both is one infinity.
SLUICE_HD void split_f16(std::uint32_t pair, std::uint32_t& first, std::uint32_t& second) {
  first = second = 0;
  // Subnormal numbers too: the product is exact.
  const auto widen = [](std::uint32_t magnitude) { return bits_as<float>(magnitude << 13) * 0x1p112f; };
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t bits = pair >> (16 * half) & 0xFFFFu, sign = bits & 0x8000u,
                        magnitude = bits & 0x7FFFu;
    const bool finite = magnitude < 0x7C00u;
    const std::uint32_t upper = magnitude != 0 ? (magnitude - 1) & 0x7FF8u : 0u;
    const float high = widen(upper), low = widen(magnitude) - high;
    const std::uint32_t special = magnitude == 0x7C00u ? 0x7F80u : 0x7FC0u;
    first |= (sign | (finite ? bits_as<std::uint32_t>(high) >> 16 : special)) << (16 * half);
    second |= (finite && magnitude != 0 ? sign | bits_as<std::uint32_t>(low) >> 16 : 0u) << (16 * half);
  }
}

/// Two bf16 with zeros for infinities and NaN.
SLUICE_HD std::uint32_t only_finite(std::uint32_t pair) {
  const std::uint32_t low = (pair & 0x7F80u) == 0x7F80u ? 0u : pair & 0xFFFFu;
  const std::uint32_t high = (pair & 0x7F800000u) == 0x7F800000u ? 0u : pair & 0xFFFF0000u;
  return low | high;
}

}  // namespace sluice::cuda
