// SPDX-License-Identifier: Apache-2.0
// The product of 4-bit codes and fixed-point inputs (digits.h), once for all vector widths. Only the
// kernels.cpp of a backend includes this; everything is in an anonymous namespace (kernel.h says why).
//
// For every group of columns that share a scale:  sum of codes * X, exactly;  one rounding to float32;
// times the step (exact);  acc = fma(scale, that, acc).
//
//   V  a vector, with V::Dwords as dwords, words and bytes
//   D  a decoder of decode.h: the layout and the scales are read here, its codes by V::e2m1_codes
#pragma once

#include <cstddef>

#include "experts/cpu/common/decode.h"
#include "experts/cpu/common/digit_tile.h"
#include "experts/cpu/common/digits.h"
#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/layout.h"

namespace sluice::cpu {
namespace {

template <class V, class D>
struct DigitProduct {
  using Reg = typename V::Reg;
  using Dwords = typename V::Dwords;
  static constexpr int kLanes = V::kLanes;
  static constexpr Layout kLayout = D::kLayout;
  static constexpr int kGroup = kLayout.group;
  static constexpr int kLines = kGroup / 8;
  static constexpr int kLineBytes = 4 * kLanes;
  static constexpr int kCodeBytes = kLayout.code_bytes(kLanes);
  static constexpr int kBlockBytes = kLayout.block_bytes(kLanes);
  static constexpr int kGroupBytes = kLayout.group_bytes(kLanes);
  /// Groups that share a step.
  static constexpr int kGroupsAStep = kDigitColumns / kGroup;
  /// Bytes that are asked for ahead of a walk over cold weights (multiply.h).
  static constexpr int kAhead = 8192;
  using Sums = Dwords[2][ByteDigits::kDigits];
  /// e2m1 codes are twice the value.
  using Tiles = DigitTiles<V, kGroup, 2>;
  static constexpr float kUnit = D::kUnit;

  static constexpr DigitStart start_of(int group) {
    return kGroupsAStep == 1 ? kWhole : group % 2 == 0 ? kFirstHalf : kSecondHalf;
  }
  static const std::byte* weights(const Multiplication& a, int pair) {
    return a.weights + pair * a.pair_bytes;
  }
  static Reg finish(const Multiplication& a, int pair, int block, Reg sum) {
    if constexpr (kUnit != 1.0f) sum = V::mul(sum, V::broadcast(&kUnit));
    const auto* factors = reinterpret_cast<const float*>(weights(a, pair) + a.factors_offset);
    return V::mul(sum, V::load(factors + block * kLanes));
  }
  static Dwords codes(const std::byte* line, int nibble) {
    const Dwords both = V::load_dwords(line);
    return V::e2m1_codes(nibble == 0 ? V::low_nibbles(both) : V::high_nibbles(both));
  }

  // ---- one token: 8-bit products

  static void one(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair) {
      const std::byte* group = weights(a, pair);
      const auto* input = static_cast<const ByteDigits*>(a.digits);
      Reg acc[2] = {V::zero(), V::zero()};
      int g = 0;
      for (; g + kGroupsAStep <= a.groups; g += kGroupsAStep, ++input)
        for (int i = 0; i < kGroupsAStep; ++i, group += kGroupBytes) one_group(group, *input, i, acc);
      // An odd group at the end has a step of its own.
      if (g < a.groups) one_group(group, *input, 0, acc);
      for (int b = 0; b < 2; ++b) V::store(a.out[b] + pair * a.out_step, finish(a, pair, b, acc[b]));
    }
  }

  /// Group `i` of a step.
  [[gnu::always_inline]] static inline void one_group(const std::byte* group, const ByteDigits& input, int i,
                                                      Reg (&acc)[2]) {
    for (int line = 0; line < kGroupBytes; line += 64) V::prefetch(group + kAhead + line);
    Sums sum;
    if constexpr (AddsProducts<V>) {
      add_at_once(group, input, i, sum);
    } else {
      add_words(group, input, i, sum);
    }
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b) {
      // The inner sum is below 2^24 and exact: the outer one rounds, once.
      const Reg low = V::fma(V::to_float(sum[b][1]), V::set(0x1p8f), V::to_float(sum[b][0]));
      const Reg all = V::fma(V::to_float(sum[b][2]), V::set(0x1p16f), low);
      acc[b] = V::fma(D::scale(group + b * kBlockBytes + kCodeBytes), Tiles::value(all, &input.step), acc[b]);
    }
  }

  [[gnu::always_inline]] static inline void add_at_once(const std::byte* group, const ByteDigits& input,
                                                        int i, Sums& sum) {
    constexpr int kDigits = ByteDigits::kDigits;
    for (auto& block : sum)
      for (int d = 0; d < kDigits; ++d) block[d] = V::broadcast_dword(&input.start[start_of(i)][d]);
#pragma GCC unroll 8
    for (int q = 0; q < 2 * kLines; ++q) {
      const std::byte* line = group + q / 2 * kLineBytes;
      const Dwords w[2] = {codes(line, q % 2), codes(line + kBlockBytes, q % 2)};
#pragma GCC unroll 3
      for (int d = 0; d < kDigits; ++d) {
        const Dwords x = V::broadcast_dword(&input.digits[i * 2 * kLines + q][d]);
        for (int b = 0; b < 2; ++b) sum[b][d] = V::dot_bytes(sum[b][d], w[b], x);
      }
    }
  }

  [[gnu::always_inline]] static inline void add_words(const std::byte* group, const ByteDigits& input, int i,
                                                      Sums& sum) {
    constexpr int kDigits = ByteDigits::kDigits;
    // Words hold 16 columns: 8 products of at most 24 * 128 each.
#pragma GCC unroll 2
    for (int h = 0; h < kGroup / 16; ++h) {
      Dwords words[2][kDigits];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const std::int32_t* digits = input.digits[(i * kLines + 2 * h) * 2 + q];
        const std::byte* line = group + (2 * h + q / 2) * kLineBytes;
        const Dwords w[2] = {codes(line, q % 2), codes(line + kBlockBytes, q % 2)};
#pragma GCC unroll 3
        for (int d = 0; d < kDigits; ++d) {
          const Dwords x = V::broadcast_dword(digits + d);
#pragma GCC unroll 2
          for (int b = 0; b < 2; ++b) {
            const Dwords product = V::multiply_bytes(w[b], x);
            words[b][d] = q == 0 ? product : V::add_words(words[b][d], product);
          }
        }
      }
#pragma GCC unroll 3
      for (int d = 0; d < kDigits; ++d)
#pragma GCC unroll 2
        for (int b = 0; b < 2; ++b) {
          const Dwords before = h == 0 ? V::broadcast_dword(&input.start[start_of(i)][d]) : sum[b][d];
          sum[b][d] = V::add_dwords(before, V::add_pairs(words[b][d]));
        }
    }
  }

  // ---- several tokens: 16-bit products

  static void several(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair) {
      Tiles::pair(a, pair, a.groups, [&](int first, int count, typename Tiles::PanelGroup* panel) {
        for (int g = 0; g < count; ++g)
          decode(weights(a, pair) + (first + g) * static_cast<std::size_t>(kGroupBytes), panel[g]);
      });
      for (int m = 0; m < a.tokens; ++m)
        for (int b = 0; b < 2; ++b) {
          float* at = Tiles::out(a, b, pair, m);
          V::store(at, finish(a, pair, b, V::load(at)));
        }
    }
  }

  static void decode(const std::byte* group, typename Tiles::PanelGroup& to) {
    // The next panel's, for which the tiles of this one leave the time.
    for (int line = 0; line < kGroupBytes; line += 64)
      V::prefetch(group + Tiles::kPanelGroups * kGroupBytes + line);
    const Dwords zero = V::set_words(-kE2m1Zero);
    for (int b = 0; b < 2; ++b) {
      for (int q = 0; q < 2 * kLines; ++q) {
        const Dwords w = codes(group + b * kBlockBytes + q / 2 * kLineBytes, q % 2);
        V::store_words(to.codes[2 * q][b], V::add_words(V::even_bytes(w), zero));
        V::store_words(to.codes[2 * q + 1][b], V::add_words(V::odd_bytes(w), zero));
      }
      V::store(to.scales[b], D::scale(group + b * kBlockBytes + kCodeBytes));
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
