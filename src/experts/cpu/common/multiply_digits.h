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

#include "experts/cpu/common/byte_panel.h"
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
  static constexpr float kUnit = D::kUnit;

  /// The rounded sum of a group times what its codes and digits are worth: codes are twice the value.
  using Tiles = DigitTiles<V, kGroup, 2>;

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

  // ---- where codes come from

  /// A group as it is packed.
  struct Packed {
    const std::byte* group;
    [[gnu::always_inline]] Dwords codes(int vector, int b) const {
      return DigitProduct::codes(group + b * kBlockBytes + vector / 2 * kLineBytes, vector % 2);
    }
    [[gnu::always_inline]] Reg scale(int b) const { return D::scale(group + b * kBlockBytes + kCodeBytes); }
  };

  using Group = ByteGroup<V, kGroup>;
  using Panels = BytePanels<V, Group, kGroup>;
  struct InPanel {
    const Group& group;
    [[gnu::always_inline]] Dwords codes(int vector, int b) const {
      return V::load_words(group.codes[vector][b]);
    }
    [[gnu::always_inline]] Reg scale(int b) const { return V::load(group.scales[b]); }
  };

  // ---- one token

  static void one(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair) {
      const std::byte* group = weights(a, pair);
      const auto* input = static_cast<const ByteDigits*>(a.digits);
      Reg acc[2] = {V::zero(), V::zero()};
      int g = 0;
      for (; g + kGroupsAStep <= a.groups; g += kGroupsAStep, ++input, group += kGroupsAStep * kGroupBytes)
        packed_step<kGroupsAStep>(group, *input, acc);
      // An odd group at the end has a step of its own.
      if (kGroupsAStep > 1 && g < a.groups) packed_step<1>(group, *input, acc);
      for (int b = 0; b < 2; ++b) V::store(a.out[b] + pair * a.out_step, finish(a, pair, b, acc[b]));
    }
  }

  template <int kGroups>
  [[gnu::always_inline]] static inline void packed_step(const std::byte* group, const ByteDigits& input,
                                                        Reg (&acc)[2]) {
    for (int line = 0; line < kGroups * kGroupBytes; line += 64) V::prefetch(group + kAhead + line);
    step<kGroups>([&](int i) { return Packed{group + i * kGroupBytes}; }, input, acc);
  }

  /// The groups of a step. The branch takes the same way for every row of weights.
  template <int kGroups, class GroupAt>
  [[gnu::always_inline]] static inline void step(GroupAt group_at, const ByteDigits& input, Reg (&acc)[2]) {
    if (input.used == 2) {
      for (int i = 0; i < kGroups; ++i) add_group<2>(group_at(i), input, i, acc);
    } else {
      for (int i = 0; i < kGroups; ++i) add_group<3>(group_at(i), input, i, acc);
    }
  }

  /// Group `i` of a step.
  template <int kUsed, class From>
  [[gnu::always_inline]] static inline void add_group(const From& from, const ByteDigits& input, int i,
                                                      Reg (&acc)[2]) {
    ByteSums<V> sums[2];
    if constexpr (AddsProducts<V>)
      add_at_once<kUsed>(from, input, i, sums);
    else
      add_words<kUsed>(from, input, i, sums);
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b) {
      // 32 codes, 12 at most from zero, times 128 (1 + 2^8): below 2^24 and exact. The sum rounds, once.
      Reg all = V::to_float(sums[b].low);
      if constexpr (kUsed == 3) all = V::fma(V::to_float(sums[b].high), V::set(0x1p16f), all);
      acc[b] = V::fma(from.scale(b), Tiles::value(all, &input.step), acc[b]);
    }
  }

  template <int kUsed, class From>
  [[gnu::always_inline]] static inline void add_at_once(const From& from, const ByteDigits& input, int i,
                                                        ByteSums<V> (&sums)[2]) {
    const std::int32_t* start = input.start[start_of(i)];
    Dwords sum[2][kUsed];
    for (int b = 0; b < 2; ++b) {
      sum[b][0] = V::broadcast_dword(&start[0]);
      sum[b][1] = V::set_dword(0);
      if constexpr (kUsed == 3) sum[b][2] = V::broadcast_dword(&start[1]);
    }
#pragma GCC unroll 8
    for (int q = 0; q < 2 * kLines; ++q) {
      const Dwords w[2] = {from.codes(q, 0), from.codes(q, 1)};
#pragma GCC unroll 3
      for (int d = 0; d < kUsed; ++d) {
        const Dwords x = V::broadcast_dword(&input.digits[i * 2 * kLines + q][d]);
        for (int b = 0; b < 2; ++b) sum[b][d] = V::dot_bytes(sum[b][d], w[b], x);
      }
    }
    for (int b = 0; b < 2; ++b) {
      sums[b].low = V::add_dwords(V::template shift_left<8>(sum[b][1]), sum[b][0]);
      if constexpr (kUsed == 3) sums[b].high = sum[b][2];
    }
  }

  template <int kUsed, class From>
  [[gnu::always_inline]] static inline void add_words(const From& from, const ByteDigits& input, int i,
                                                      ByteSums<V> (&sums)[2]) {
    const std::int32_t* start = input.start[start_of(i)];
    // Words hold 16 columns: 8 products of at most 24 * 128 each.
#pragma GCC unroll 2
    for (int h = 0; h < kGroup / 16; ++h) {
      Dwords words[2][kUsed];
#pragma GCC unroll 4
      for (int q = 4 * h; q < 4 * h + 4; ++q) {
        const std::int32_t* digits = input.digits[i * 2 * kLines + q];
        const Dwords w[2] = {from.codes(q, 0), from.codes(q, 1)};
#pragma GCC unroll 3
        for (int d = 0; d < kUsed; ++d) {
          const Dwords x = V::broadcast_dword(digits + d);
#pragma GCC unroll 2
          for (int b = 0; b < 2; ++b) {
            const Dwords product = V::multiply_bytes(w[b], x);
            words[b][d] = q == 4 * h ? product : V::add_words(words[b][d], product);
          }
        }
      }
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        const Dwords low = h == 0 ? V::broadcast_dword(&start[0]) : sums[b].low;
        const Dwords second = V::multiply_words(words[b][1], V::set_words(1 << ByteDigits::kBits));
        sums[b].low = V::add_dwords(V::add_dwords(low, V::add_pairs(words[b][0])), second);
        if constexpr (kUsed == 3) {
          const Dwords high = h == 0 ? V::broadcast_dword(&start[1]) : sums[b].high;
          sums[b].high = V::add_dwords(high, V::add_pairs(words[b][2]));
        }
      }
    }
  }

  // ---- several tokens

  static void several(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair) {
      Panels::pair(
          a, pair, a.groups,
          [&](int first, int count, Group* panel) {
            for (int g = 0; g < count; ++g)
              decode(weights(a, pair) + (first + g) * static_cast<std::size_t>(kGroupBytes), panel[g]);
          },
          [](const Group* groups, int count, const ByteDigits& input, Reg(&acc)[2])
              __attribute__((always_inline)) {
                const auto at = [&](int i) { return InPanel{groups[i]}; };
                if (count == kGroupsAStep) return step<kGroupsAStep>(at, input, acc);
                step<1>(at, input, acc);
              });
      for (int m = 0; m < a.tokens; ++m)
        for (int b = 0; b < 2; ++b) {
          float* at = Panels::out(a, b, pair, m);
          V::store(at, finish(a, pair, b, V::load(at)));
        }
    }
  }

  static void decode(const std::byte* group, Group& to) {
    for (int line = 0; line < kGroupBytes; line += 64) V::prefetch(group + kAhead + line);
    const Packed from{group};
    for (int b = 0; b < 2; ++b) {
      for (int q = 0; q < 2 * kLines; ++q) V::store_words(to.codes[q][b], from.codes(q, b));
      V::store(to.scales[b], from.scale(b));
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
