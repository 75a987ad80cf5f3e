// SPDX-License-Identifier: Apache-2.0
// Several tokens times a panel of decoded codes in bytes, by the products that one token takes
// (multiply_digits.h, multiply_integers.h): so with the same bits, and digits that are zero cost nothing here
// either. Only the kernels.cpp of a backend includes this; everything is in an anonymous namespace (kernel.h
// says why).
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/digit_tile.h"
#include "experts/cpu/common/digits.h"
#include "experts/cpu/common/kernel.h"

namespace sluice::cpu {
namespace {

/// The sums of a row's codes times the two lower digits, the second counting 2^8, and times the third.
template <class V>
struct ByteSums {
  typename V::Dwords low, high;
};

/// The columns that one scale covers of a step, of two blocks.
template <class V, int kColumns>
struct alignas(64) ByteGroup {
  std::int16_t codes[kColumns / 4][2][2 * V::kLanes];
  float scales[2][V::kLanes];
};

/// `decode(first, count, panel)` writes groups first to first + count; it is called in ascending order.
/// `add(groups, count, input, acc)` adds the products of a step's groups, all of them or the last odd one.
/// The sums are left in `out`.
template <class V, class Group, int kColumns>
struct BytePanels {
  using Reg = typename V::Reg;
  static constexpr int kGroupsAStep = kDigitColumns / kColumns;
  /// Two blocks of 256 columns take 5 or 9 KiB of a first-level cache of at least 32.
  static constexpr int kGroups = 256 / kColumns;
  /// Tokens that leave a panel of 256 columns too little time to ask for the next: they have one of a step,
  /// and 2 tokens read MXFP4 at 17 GB/s instead of 14.6, INT4 at 17.4 instead of 12.7 (Sapphire Rapids, 2
  /// threads). As fast at 9 tokens.
  static constexpr int kFew = 8;

  static float* out(const Multiplication& a, int block, int pair, int token) {
    return a.out[block] + token * a.out_stride + pair * a.out_step;
  }

  template <class Decode, class Add>
  [[gnu::always_inline]] static inline void pair(const Multiplication& a, int pair, int all, Decode&& decode,
                                                 Add&& add) {
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(out(a, b, pair, m), V::zero());
    const int most = a.tokens <= kFew ? kGroupsAStep : kGroups;
    Group panel[kGroups];
    for (int first = 0; first < all; first += most) {
      const int count = all - first < most ? all - first : most;
      decode(first, count, panel);
      const auto* inputs =
          static_cast<const std::byte*>(a.digits) + first / kGroupsAStep * sizeof(ByteDigits);
      for (int m = 0; m < a.tokens; ++m, inputs += a.digits_stride) {
        const auto* input = reinterpret_cast<const ByteDigits*>(inputs);
        float* const to[2] = {out(a, 0, pair, m), out(a, 1, pair, m)};
        Reg acc[2] = {V::load(to[0]), V::load(to[1])};
        for (int g = 0; g < count; g += kGroupsAStep, ++input)
          add(panel + g, count - g < kGroupsAStep ? count - g : kGroupsAStep, *input, acc);
        for (int b = 0; b < 2; ++b) V::store(to[b], acc[b]);
      }
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
