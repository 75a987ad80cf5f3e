// SPDX-License-Identifier: Apache-2.0
// Walks over packed weights that give them as pairs of bf16. Only the kernels.cpp of a backend includes this;
// everything is in an anonymous namespace (kernel.h says why).
//
// What a product does with a Source:
//   Walk(a, pair)              stands at the first chain of a pair; ++ goes to the next
//   walk.columns()             of the chain
//   walk.scale(b)              where kScaled
//   walk.pairs(use)            use(i, w) for every pair of columns of the chain, w of both blocks
//   Source::scale_columns(a)  that share a scale, in a panel of 256 that starts at a multiple of 256
//   Source::finish(a, pair, b, sum)
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/decode_bf16.h"
#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/layout.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/multiply_integers.h"

namespace sluice::cpu {
namespace {

/// Columns of a chain that no scale ends: longer ones cost fewer additions, shorter ones round less.
constexpr int kMostChain = 64;

// ---- weights that a Layout describes

/// D is a Decoder of decode.h whose codes are pairs (decode_bf16.h).
template <class V, class D>
struct LayoutSource {
  using Reg = typename V::Reg;
  static constexpr Layout kLayout = D::kLayout;
  static constexpr int kGroup = kLayout.group;
  static constexpr bool kScaled = kLayout.scales != Scales::none;
  static constexpr int kChain = kScaled && kGroup < kMostChain ? kGroup : kMostChain;
  static constexpr int kPiece = D::kPiece;
  static constexpr int kCodeBytes = kLayout.code_bytes(V::kLanes);
  static constexpr int kBlockBytes = kLayout.block_bytes(V::kLanes);
  static constexpr int kGroupBytes = kLayout.group_bytes(V::kLanes);
  static constexpr int kPiecesAGroup = kGroup / kPiece;
  static constexpr int kPieceBytes = kCodeBytes / kPiecesAGroup;
  /// From one piece of a chain to the next: within a group, or the next group.
  static constexpr int kPieceStep = kPiecesAGroup > 1 ? kPieceBytes : kGroupBytes;
  static constexpr int kPieces = kChain / kPiece;
  /// A chain is whole groups, or groups are whole chains.
  static constexpr int kChainsAGroup = kGroup > kChain ? kGroup / kChain : 1;
  /// Bytes that are asked for ahead of a walk over cold weights (multiply.h).
  static constexpr int kAhead = 8192;

  class Walk {
   public:
    [[gnu::always_inline]] Walk(const Multiplication& a, int pair)
        : at_(a.weights + pair * a.pair_bytes), left_(a.groups * kPiecesAGroup) {}

    [[gnu::always_inline]] int columns() const { return (left_ < kPieces ? left_ : kPieces) * kPiece; }
    [[gnu::always_inline]] void operator++() {
      left_ -= kPieces;
      at_ += kPieces * kPieceStep;
      if constexpr (kChainsAGroup > 1) {
        if (++chain_ % kChainsAGroup == 0) at_ += kGroupBytes - kCodeBytes;
      }
    }
    [[gnu::always_inline]] Reg scale(int b) const { return D::scale(scale_at(b)); }
    [[gnu::always_inline]] const std::byte* scale_at(int b) const {
      return group() + b * kBlockBytes + kCodeBytes;
    }
    [[gnu::always_inline]] void prefetch() const {
      if constexpr (kChainsAGroup == 1) {
        constexpr int kBytes = kScaled ? kGroupBytes : kPieces * kGroupBytes;
#pragma GCC unroll 1
        for (int line = 0; line < kBytes; line += 64) V::prefetch(at_ + kAhead + line);
      } else {
        for (int line = 0; line < kCodeBytes / kChainsAGroup; line += 64)
          for (int b = 0; b < 2; ++b) V::prefetch(at_ + b * kBlockBytes + kAhead + line);
      }
    }
    template <class Use>
    [[gnu::always_inline]] void pairs(Use&& use) const {
      if constexpr (kPieces == 1) {
        D::template piece<2>({at_, at_ + kBlockBytes}, use);
      } else {
        const std::byte* codes = at_;
        const int pieces = columns() / kPiece;
        for (int p = 0; p < pieces; ++p, codes += kPieceStep)
          D::template piece<2>(
              {codes, codes + kBlockBytes}, [&](int i, const auto(&w)[2]) __attribute__((always_inline)) {
                use(p * (kPiece / 2) + i, w);
              });
      }
    }

   private:
    [[gnu::always_inline]] const std::byte* group() const {
      return at_ - chain_ % kChainsAGroup * (kCodeBytes / kChainsAGroup);
    }

    const std::byte* at_;
    int left_;
    int chain_ = 0;
  };

  static int scale_columns(const Multiplication&) { return kGroup; }
  static Reg finish(const Multiplication& a, int pair, int block, Reg sum) {
    constexpr float kUnit = D::kUnit;
    if constexpr (kUnit != 1.0f) sum = V::mul(sum, V::set(kUnit));
    if constexpr (!kLayout.factors) return sum;
    const auto* factors = reinterpret_cast<const float*>(a.weights + pair * a.pair_bytes + a.factors_offset);
    return V::mul(sum, V::load(factors + block * V::kLanes));
  }
};

template <class V>
using Bf16Source = LayoutSource<V, Decoder<kBf16, PlainPairs<V, 16>, NoScale<V>>>;

/// Of bf16 weights: pairs of blocks that are marked (layout.h) take the float32 kernel, others `Fast`.
template <class V, class Fast>
struct UnmarkedPairs {
  static void run(const Multiplication& a) {
    Multiplication one = a;
    one.pairs = 1;
    for (int pair = 0; pair < a.pairs; ++pair) {
      const auto* mark = reinterpret_cast<const std::int32_t*>(one.weights + a.factors_offset);
      if (*mark != 0)
        Product<V, Decoder<kBf16, Bf16Codes<V>, NoScale<V>>>::run(one);
      else
        Fast::run(one);
      one.weights += a.pair_bytes;
      for (float*& out : one.out) out += a.out_step;
    }
  }
};

// ---- integers of four bits

/// A code less its zero point: 5 bits with their sign.
template <class V>
struct Int4Values {
  typename V::Dwords zero[2];  // minus the zero points, as words
  [[gnu::always_inline]] typename V::Dwords of(typename V::Dwords words, int b) const {
    return V::int5_pairs(V::add_words(V::and_bits(words, V::set_words(0xF)), zero[b]));
  }
};

/// A code less 8.
template <class V>
struct SymmetricInt4Values {
  [[gnu::always_inline]] typename V::Dwords of(typename V::Dwords words, int) const {
    return V::int4_pairs(words);
  }
};

template <class V, int kPart, bool kZeros>
struct Int4Source {
  using Reg = typename V::Reg;
  using Integers = IntegerProduct<V, 4, kPart>;
  static constexpr int kGroup = kDigitColumns;  // a step, which Multiplication counts
  static constexpr int kChain = kPart;
  static constexpr bool kScaled = true;
  static constexpr int kParts = kDigitColumns / kPart;
  static constexpr int kLineBytes = 4 * V::kLanes;

  class Walk {
   public:
    [[gnu::always_inline]] Walk(const Multiplication& a, int pair) : step_(a, pair) {}

    [[gnu::always_inline]] int columns() const { return kPart; }
    [[gnu::always_inline]] void operator++() {
      part_ = (part_ + 1) % kParts;
      if (part_ == 0) ++step_;
    }
    [[gnu::always_inline]] Reg scale(int b) const { return step_.head.scale[part()][b]; }
    [[gnu::always_inline]] void prefetch() const {
      for (int line = 0; line < Integers::kStepBytes / kParts; line += 64)
        V::prefetch(codes(0) + Integers::kAhead + line);
    }
    template <class Use>
    [[gnu::always_inline]] void pairs(Use&& use) const {
      if constexpr (kZeros) {
        const Int4Values<V> values{{step_.head.both_zero(part(), 0), step_.head.both_zero(part(), 1)}};
        NibblePairs<V, Int4Values<V>, kPart>::template piece<2>({codes(0), codes(1)}, values, use);
      } else {
        NibblePairs<V, SymmetricInt4Values<V>, kPart>::template piece<2>({codes(0), codes(1)}, {}, use);
      }
    }

   private:
    /// A constant where it can be, so that a head stays in registers.
    [[gnu::always_inline]] int part() const { return kParts == 1 ? 0 : part_; }
    [[gnu::always_inline]] const std::byte* codes(int b) const {
      return step_.block(b) + part() * (kPart / 8 * kLineBytes);
    }

    typename Integers::Walk step_;
    int part_ = 0;
  };

  static int scale_columns(const Multiplication& a) {
    const int steps = a.integers.group_steps;
    if (kParts > 1) return kPart;
    return kDigitColumns * (steps % 8 == 0 ? 8 : 8 % steps == 0 ? steps : 1);
  }
  static Reg finish(const Multiplication&, int, int, Reg sum) { return sum; }
};

}  // namespace
}  // namespace sluice::cpu
