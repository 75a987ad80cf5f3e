// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/bf16_pairs.h"

#include <bit>

namespace sluice::cpu {
namespace {

/// Bits of 2^-100, whose products with what formats of fewer than 16 bits hold (2^-9 at least) are normal.
/// Bf16 weights may be smaller; the difference is below 2^-126 and no matter of this backend's contract.
constexpr std::uint32_t kLeast = 27u << 23;

constexpr int kAtOnce = 8;

/// Zero when all are bf16 and zero or large enough.
std::uint32_t faults(const float* row, int columns) {
  std::uint32_t faults[kAtOnce] = {};
  for (int c = 0; c < columns; c += kAtOnce)
    for (int i = 0; i < kAtOnce; ++i) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(row[c + i]);
      const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFF);
      const std::uint32_t small = magnitude < static_cast<std::int32_t>(kLeast) ? magnitude : 0;
      faults[i] |= (bits & 0xFFFF) | small;
    }
  std::uint32_t all = 0;
  for (const std::uint32_t fault : faults) all |= fault;
  return all;
}

std::int32_t pair(float first, float second) {
  return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(first) >> 16 |
                                   (std::bit_cast<std::uint32_t>(second) & 0xFFFF0000u));
}

}  // namespace

bool to_bf16_pairs(const float* row, int columns, PairOrder order, std::int32_t* out) {
  if (faults(row, columns) != 0) return false;
  if (order == PairOrder::neighbours) {
    for (int i = 0; i < columns / 2; ++i) out[i] = pair(row[2 * i], row[2 * i + 1]);
  } else {
    for (int c = 0; c < columns; c += 8)
      for (int q = 0; q < 4; ++q) out[c / 2 + q] = pair(row[c + q], row[c + q + 4]);
  }
  return true;
}

}  // namespace sluice::cpu
