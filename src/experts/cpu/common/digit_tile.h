// SPDX-License-Identifier: Apache-2.0
// Several tokens times codes that are small signed integers, in fixed point (digits.h): 16-bit products from
// a panel of decoded codes, once for all formats that have digits. Only the kernels.cpp of a backend includes
// this; everything is in an anonymous namespace (kernel.h says why).
//
//   V       a vector, with V::Dwords as dwords, words and bytes
//   kGroup  columns of an exact sum, 32 or 16, which is rounded once and then scaled
//   kUnits  codes are so many times the value
//   kMinimums  a minimum is subtracted from the weights of every group, of a whole step
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/digits.h"
#include "experts/cpu/common/kernel.h"

namespace sluice::cpu {
namespace {

/// Vectors that add four products of bytes, or two of words, to a dword at once. No sum here is as large as a
/// dword, so the bits are those of the others.
template <class V>
concept AddsProducts = requires(typename V::Dwords v) {
  V::dot_bytes(v, v, v);
  V::dot_words(v, v, v);
};

template <class V>
[[gnu::always_inline]] inline typename V::Dwords dot_words(typename V::Dwords sum, typename V::Dwords codes,
                                                           typename V::Dwords x) {
  if constexpr (AddsProducts<V>) return V::dot_words(sum, codes, x);
  return V::add_dwords(sum, V::multiply_words(codes, x));
}

/// Minus the minimums of a group, where there are any.
template <class V, bool kMinimums>
struct alignas(64) PanelMinimums {};
template <class V>
struct alignas(64) PanelMinimums<V, true> {
  float minimums[2][V::kLanes];
};

template <class V, int kGroup, int kUnits, bool kMinimums = false>
struct DigitTiles {
  static_assert(!kMinimums || kGroup == kDigitColumns);
  using Reg = typename V::Reg;
  using Dwords = typename V::Dwords;
  static constexpr int kLanes = V::kLanes;
  /// Groups that share a step.
  static constexpr int kGroupsAStep = kDigitColumns / kGroup;

  struct alignas(64) PanelGroup : PanelMinimums<V, kMinimums> {
    std::int16_t codes[kGroup / 2][2][2 * kLanes];
    float scales[2][kLanes];
  };
  /// Two blocks of 256 columns take 9 or 18 KiB of a first-level cache of at least 32.
  static constexpr int kPanelGroups = 256 / kGroup;

  /// The rounded sum of a group times what its codes and digits are worth.
  static Reg value(Reg sum, const float* step) {
    if constexpr (kUnits == 1) return V::mul(sum, V::broadcast(step));
    return V::mul(sum, V::mul(V::broadcast(step), V::set(1.0f / kUnits)));
  }

  static float* out(const Multiplication& a, int block, int pair, int token) {
    return a.out[block] + token * a.out_stride + pair * a.out_step;
  }

  /// `decode(first, count, panel)` writes groups first to first + count; it is called in ascending order.
  /// The sums are left in `out`.
  template <class Decode>
  [[gnu::always_inline]] static inline void pair(const Multiplication& a, int pair, int all,
                                                 Decode&& decode) {
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(out(a, b, pair, m), V::zero());
    const int tiles = (a.tokens + V::kDigitTile - 1) / V::kDigitTile;
    PanelGroup panel[kPanelGroups];
    for (int first = 0; first < all; first += kPanelGroups) {
      const int groups = all - first < kPanelGroups ? all - first : kPanelGroups;
      decode(first, groups, panel);
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
  }

 private:
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

  /// Not inlined: the tiles are the same for all formats with these groups.
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
#pragma GCC unroll 16
    for (int k = 0; k < kGroup / 2; ++k) {
      const Dwords w[2] = {V::load_words(panel.codes[k][0]), V::load_words(panel.codes[k][1])};
#pragma GCC unroll 4
      for (int m = 0; m < kTokens; ++m)
#pragma GCC unroll 2
        for (int d = 0; d < kDigits; ++d) {
          const Dwords x = V::broadcast_dword(&input[m]->digits[part * (kGroup / 2) + k][d]);
          for (int b = 0; b < 2; ++b) {
            sum[b][m][d] = k == 0 ? V::multiply_words(w[b], x) : dot_words<V>(sum[b][m][d], w[b], x);
          }
        }
    }
    for (int m = 0; m < kTokens; ++m)
      for (int b = 0; b < 2; ++b) {
        // Both are below 2^24 (digits of 12 bits, 32 codes of at most 255) and exact: the sum rounds, once.
        const Reg all = V::fma(V::to_float(sum[b][m][1]), V::set(0x1p12f), V::to_float(sum[b][m][0]));
        float* at = work.out[b] + m * work.out_stride;
        Reg acc = V::fma(V::load(panel.scales[b]), value(all, &input[m]->step), V::load(at));
        if constexpr (kMinimums) acc = V::fma(V::load(panel.minimums[b]), V::broadcast(&input[m]->sum), acc);
        V::store(at, acc);
      }
  }
};

}  // namespace
}  // namespace sluice::cpu
