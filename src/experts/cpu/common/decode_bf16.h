// SPDX-License-Identifier: Apache-2.0
// How codes become pairs of bf16, as far as it is the same for every vector. Only the kernels.cpp of a
// backend includes this; everything is in an anonymous namespace (kernel.h says why).
//
// A decoder takes a piece, kPiece columns of one group: piece<B>(codes, use) decodes it for B blocks, whose
// pieces start at codes[b], and calls use(i, w) for every pair of columns in order, w[b] holding pair i of
// block b, a dword a row. Pairs are those of its PairOrder (bf16_pairs.h). Every code is exact.
#pragma once

#include <cstddef>

#include "experts/cpu/common/decode.h"
#include "experts/cpu/common/layout.h"

namespace sluice::cpu {
namespace {

/// Lines of 8 columns, a nibble each; `Values` looks the lowest nibble of every word up.
template <class V, class Values, int kColumns>
struct NibblePairs {
  static constexpr int kPiece = kColumns;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void piece(const std::byte* const (&codes)[B], const Values& values,
                                                  Use&& use) {
#pragma GCC unroll 4
    for (int line = 0; line < kPiece / 8; ++line) {
      typename V::Dwords both[B];
      for (int b = 0; b < B; ++b) both[b] = V::load_dwords(codes[b] + 4 * V::kLanes * line);
      quarter<0>(4 * line, both, values, use);
      quarter<1>(4 * line, both, values, use);
      quarter<2>(4 * line, both, values, use);
      quarter<3>(4 * line, both, values, use);
    }
  }

 private:
  template <int kQuarter, int B, class Use>
  [[gnu::always_inline]] static inline void quarter(int first, const typename V::Dwords (&line)[B],
                                                    const Values& values, Use&& use) {
    typename V::Dwords w[B];
    for (int b = 0; b < B; ++b) w[b] = values.of(V::template shift_words_right<4 * kQuarter>(line[b]), b);
    use(first + kQuarter, w);
  }
};

/// Values of e2m1, which do not depend on the block.
template <class V>
struct E2m1Values {
  [[gnu::always_inline]] typename V::Dwords of(typename V::Dwords words, int) const {
    return V::e2m1_pairs(words);
  }
};

template <class V, int kColumns>
struct E2m1Pairs {
  static constexpr int kPiece = kColumns;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void piece(const std::byte* const (&codes)[B], Use&& use) {
    NibblePairs<V, E2m1Values<V>, kColumns>::piece(codes, {}, use);
  }
};

template <class V, int kColumns>
struct E4m3Pairs {
  static constexpr int kPiece = kColumns;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void piece(const std::byte* const (&codes)[B], Use&& use) {
#pragma GCC unroll 8
    for (int four = 0; four < kPiece / 4; ++four) {
      typename V::Dwords first[B], second[B];
      for (int b = 0; b < B; ++b) V::e4m3_pairs(codes[b] + 4 * V::kLanes * four, first[b], second[b]);
      use(2 * four, first);
      use(2 * four + 1, second);
    }
  }
};

template <class V, int kColumns>
struct PlainPairs {
  static constexpr int kPiece = kColumns;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void piece(const std::byte* const (&codes)[B], Use&& use) {
#pragma GCC unroll 8
    for (int i = 0; i < kPiece / 2; ++i) {
      typename V::Dwords w[B];
      for (int b = 0; b < B; ++b) w[b] = V::load_dwords(codes[b] + 4 * V::kLanes * i);
      use(i, w);
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
