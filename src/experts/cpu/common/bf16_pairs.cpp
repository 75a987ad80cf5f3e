// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/bf16_pairs.h"

#include <algorithm>
#include <bit>

namespace sluice::cpu {
namespace {

/// Bits of 2^-85 and of 2^-69. What a value then is a multiple of, 2^-92 (bf16 has 8 bits, float32 24), times
/// the smallest code with its scale (2^-9 times 2^-24, multiply_amx.h) is a normal number, and so is every
/// sum of such products other than 0. Bf16 weights may be smaller; the difference is below 2^-126 and no
/// matter of this backend's contract.
constexpr std::int32_t kLeastOfOneTerm = 42 << 23, kLeastOfMore = 58 << 23;
constexpr std::int32_t kInfinity = 0x7F800000;

constexpr int kAtOnce = 8;

/// What a row has anywhere.
struct Seen {
  std::uint32_t low_bits = 0;                // that bf16 has not
  std::int32_t least = kInfinity, most = 0;  // bits of magnitudes, of those other than 0
};

Seen look(const float* row, int columns) {
  std::uint32_t low[kAtOnce] = {};
  std::int32_t least[kAtOnce], most[kAtOnce] = {};
  std::fill_n(least, kAtOnce, kInfinity);
  for (int c = 0; c < columns; c += kAtOnce)
    for (int i = 0; i < kAtOnce; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(row[c + i]);
      const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFF);
      const std::int32_t size = magnitude == 0 ? kInfinity : magnitude;
      low[i] |= bits & 0xFFFF;
      least[i] = size < least[i] ? size : least[i];
      most[i] = magnitude > most[i] ? magnitude : most[i];
    }
  Seen all;
  for (int i = 0; i < kAtOnce; ++i)
    all = {all.low_bits | low[i], std::min(all.least, least[i]), std::max(all.most, most[i])};
  return all;
}

/// The value without the bits that bf16 has not.
float cut(float value) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xFFFF0000u); }

std::int32_t pair(float first, float second) {
  return static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(first) >> 16 |
                                   (std::bit_cast<std::uint32_t>(second) & 0xFFFF0000u));
}

/// A pair of columns in all its terms; what remains of either after the second.
struct Terms {
  const TermsOut& out;
  float rest = 0;  // the largest anywhere

  void write(std::size_t at, float first, float second) {
    out.at[at] = pair(first, second);
    if (out.most == 1) return;
    first -= cut(first);
    second -= cut(second);
    out.at[out.stride + at] = pair(first, second);
    first -= cut(first);
    second -= cut(second);
    out.at[2 * out.stride + at] = pair(first, second);
    rest = std::max({rest, first, -first, second, -second});
  }
};

void write_zeros(int columns, const TermsOut& out) {
  for (int term = 0; term < out.most; ++term)
    std::fill(out.at + term * out.stride + columns / 2, out.at + (term + 1) * out.stride, 0);
}

}  // namespace

int to_bf16_terms(const float* row, int columns, PairOrder order, const TermsOut& all) {
  const Seen seen = look(row, columns);
  TermsOut out = all;
  if (seen.low_bits == 0) out.most = 1;
  if (out.most == 1 && seen.low_bits != 0) return 0;
  if (seen.least < (out.most == 1 ? kLeastOfOneTerm : kLeastOfMore)) return 0;
  if (out.most > 1 && seen.most >= kInfinity) return 0;
  Terms terms{out};
  if (order == PairOrder::neighbours) {
    for (int i = 0; i < columns / 2; ++i)
      terms.write(static_cast<std::size_t>(i), row[2 * i], row[2 * i + 1]);
  } else {
    for (int c = 0; c < columns; c += 8)
      for (int q = 0; q < 4; ++q)
        terms.write(static_cast<std::size_t>(c / 2 + q), row[c + q], row[c + q + 4]);
  }
  write_zeros(columns, out);
  return out.most == 1 ? 1 : terms.rest == 0 ? 2 : 3;
}

}  // namespace sluice::cpu
