// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/to_int8.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sluice::cpu {
namespace {

/// Of 2^-100 and 2^110: 127 by the one, and 2^20 (32 codes of 8 bits) steps of the other, are float32.
constexpr std::int32_t kLeastBits = 27 << 23, kMostBits = 237 << 23;
/// Adding it leaves no room for a fraction, so that it rounds to nearest even, and the sum's lowest bits are
/// the integer's.
constexpr float kRounds = 0x1.8p23f;

/// Of 32 values, the bits of the largest magnitude. Compared as integers: bits of floats without their sign
/// are in the order of the magnitudes, and NaN is above all.
std::int32_t largest_bits(const float* x) {
  std::int32_t largest = 0;
  for (int i = 0; i < kDigitColumns; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF);
  return largest;
}

/// Two sums as words.
std::int32_t words(std::int32_t low, std::int32_t high) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(low) & 0xFFFFu) |
                                   static_cast<std::uint32_t>(high) << 16);
}

void put(const std::int32_t (&q)[kDigitColumns], float step, Int8Columns& out) {
  std::int32_t low[2] = {}, high[2] = {};  // words, of both halves
  for (int line = 0; line < kDigitColumns / 8; ++line)
    for (int nibble = 0; nibble < 2; ++nibble) {
      const std::int32_t* at = q + 8 * line + nibble;
      std::uint32_t bytes = 0;
      for (int j = 0; j < 4; ++j) bytes |= (static_cast<std::uint32_t>(at[2 * j]) & 0xFFu) << (8 * j);
      out.codes[2 * line + nibble] = static_cast<std::int32_t>(bytes);
      low[line / 2] += at[0] + at[2];
      high[line / 2] += at[4] + at[6];
    }
  out.sums[kInt8First] = words(low[0], high[0]);
  out.sums[kInt8Second] = words(low[1], high[1]);
  out.sums[kInt8Whole] = words(low[0] + low[1], high[0] + high[1]);
  out.step = step;
  out.sum = static_cast<float>(low[0] + low[1] + high[0] + high[1]);
}

}  // namespace

bool to_int8(const float* row, int columns, Int8Columns* out) {
  std::int32_t q[kDigitColumns];
  for (int done = 0; done < columns; done += kDigitColumns, row += kDigitColumns, ++out) {
    const std::int32_t bits = largest_bits(row);
    if (bits == 0) {
      *out = {};
      continue;
    }
    if (bits < kLeastBits || bits > kMostBits) return false;
    const float largest = std::bit_cast<float>(bits), inverse = kMostInt8 / largest;
    for (int i = 0; i < kDigitColumns; ++i)
      q[i] = std::bit_cast<std::int32_t>(row[i] * inverse + kRounds) - std::bit_cast<std::int32_t>(kRounds);
    put(q, largest / kMostInt8, *out);
  }
  return true;
}

}  // namespace sluice::cpu
