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
  /// e2m1 codes are twice the value.
  static constexpr float kCodeUnit = 0.5f;
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
  /// The rounded sum of a group times what its codes and digits are worth.
  static Reg value(Reg sum, const float* step) {
    return V::mul(sum, V::mul(V::broadcast(step), V::set(kCodeUnit)));
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
    constexpr int kDigits = ByteDigits::kDigits;
    for (int line = 0; line < kGroupBytes; line += 64) V::prefetch(group + kAhead + line);
    Dwords sum[2][kDigits];
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
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b) {
      // The inner sum is below 2^24 and exact: the outer one rounds, once.
      const Reg low = V::fma(V::to_float(sum[b][1]), V::set(0x1p8f), V::to_float(sum[b][0]));
      const Reg all = V::fma(V::to_float(sum[b][2]), V::set(0x1p16f), low);
      acc[b] = V::fma(D::scale(group + b * kBlockBytes + kCodeBytes), value(all, &input.step), acc[b]);
    }
  }

  // ---- several tokens: 16-bit products, from a panel of codes

  struct alignas(64) PanelGroup {
    std::int16_t codes[kGroup / 2][2][2 * kLanes];
    float scales[2][kLanes];
  };
  /// Two blocks of 256 columns take 9 or 18 KiB of a first-level cache of at least 32.
  static constexpr int kPanelGroups = 256 / kGroup;

  static void several(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair) several_of_pair(a, pair);
  }

  static float* out(const Multiplication& a, int block, int pair, int token) {
    return a.out[block] + token * a.out_stride + pair * a.out_step;
  }

  static void several_of_pair(const Multiplication& a, int pair) {
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(out(a, b, pair, m), V::zero());
    const int tiles = (a.tokens + V::kDigitTile - 1) / V::kDigitTile;
    PanelGroup panel[kPanelGroups];
    for (int first = 0; first < a.groups; first += kPanelGroups) {
      const int groups = a.groups - first < kPanelGroups ? a.groups - first : kPanelGroups;
      for (int g = 0; g < groups; ++g)
        decode(weights(a, pair) + (first + g) * static_cast<std::size_t>(kGroupBytes), panel[g]);
      for (int t = 0; t < tiles; ++t) {
        const int token = a.tokens * t / tiles, end = a.tokens * (t + 1) / tiles;
        tile(end - token, {.panel = panel,
                           .groups = groups,
                           .input = static_cast<const std::byte*>(a.digits) + token * a.digits_stride +
                                    first / kGroupsAStep * sizeof(WordDigits),
                           .input_stride = a.digits_stride,
                           .out = {out(a, 0, pair, token), out(a, 1, pair, token)},
                           .out_stride = a.out_stride});
      }
    }
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b)
        V::store(out(a, b, pair, m), finish(a, pair, b, V::load(out(a, b, pair, m))));
  }

  static void decode(const std::byte* group, PanelGroup& to) {
    // The next panel's, for which the tiles of this one leave the time.
    for (int line = 0; line < kGroupBytes; line += 64) V::prefetch(group + kPanelGroups * kGroupBytes + line);
    for (int b = 0; b < 2; ++b) {
      for (int q = 0; q < 2 * kLines; ++q) {
        const Dwords w = codes(group + b * kBlockBytes + q / 2 * kLineBytes, q % 2);
        V::store_words(to.codes[2 * q][b], V::even_bytes(w));
        V::store_words(to.codes[2 * q + 1][b], V::odd_bytes(w));
      }
      V::store(to.scales[b], D::scale(group + b * kBlockBytes + kCodeBytes));
    }
  }

  struct TileWork {
    const PanelGroup* panel;
    int groups;
    const std::byte* input;
    std::size_t input_stride;
    float* out[2];
    std::size_t out_stride;
  };

  /// run_tile<tokens> for a number known at run time.
  template <int kTokens = V::kDigitTile>
  static void tile(int tokens, const TileWork& work) {
    if constexpr (kTokens > 1) {
      if (tokens < kTokens) return tile<kTokens - 1>(tokens, work);
    }
    run_tile<kTokens>(work);
  }

  template <int kTokens>
  [[gnu::noinline]] static void run_tile(const TileWork& work) {
    const WordDigits* input[kTokens];
    for (int m = 0; m < kTokens; ++m)
      input[m] = reinterpret_cast<const WordDigits*>(work.input + m * work.input_stride);
    for (int g = 0; g < work.groups; ++g) {
      tile_group<kTokens>(work, g, input);
      if ((g + 1) % kGroupsAStep == 0)
        for (const WordDigits*& at : input) ++at;
    }
  }

  template <int kTokens>
  [[gnu::always_inline]] static inline void tile_group(const TileWork& work, int g,
                                                       const WordDigits* const (&input)[kTokens]) {
    constexpr int kDigits = WordDigits::kDigits;
    const PanelGroup& panel = work.panel[g];
    const int part = g % kGroupsAStep;
    Dwords sum[2][kTokens][kDigits];
    for (int m = 0; m < kTokens; ++m)
      for (int d = 0; d < kDigits; ++d)
        sum[0][m][d] = sum[1][m][d] = V::broadcast_dword(&input[m]->start[start_of(part)][d]);
#pragma GCC unroll 16
    for (int k = 0; k < kGroup / 2; ++k) {
      const Dwords w[2] = {V::load_words(panel.codes[k][0]), V::load_words(panel.codes[k][1])};
#pragma GCC unroll 4
      for (int m = 0; m < kTokens; ++m)
#pragma GCC unroll 2
        for (int d = 0; d < kDigits; ++d) {
          const Dwords x = V::broadcast_dword(&input[m]->digits[part * (kGroup / 2) + k][d]);
          for (int b = 0; b < 2; ++b) sum[b][m][d] = V::add_dwords(sum[b][m][d], V::multiply_words(w[b], x));
        }
    }
    for (int m = 0; m < kTokens; ++m)
      for (int b = 0; b < 2; ++b) {
        const Reg all = V::fma(V::to_float(sum[b][m][1]), V::set(0x1p12f), V::to_float(sum[b][m][0]));
        float* at = work.out[b] + m * work.out_stride;
        V::store(at, V::fma(V::load(panel.scales[b]), value(all, &input[m]->step), V::load(at)));
      }
  }
};

}  // namespace
}  // namespace sluice::cpu
