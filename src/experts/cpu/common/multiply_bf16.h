// SPDX-License-Identifier: Apache-2.0
// The product of exact weights and rows of bf16 (bf16_pairs.h), once for all formats. Only the kernels.cpp of
// a backend includes this; everything is in an anonymous namespace (kernel.h says why).
//
//   V  a vector with V::dot(sum, w, x): two products of bf16 a lane added to a float32, the second one first,
//      each with one rounding
//
// A row of weights is summed in chains of columns, those that share a scale and at most kMostChain: pairs in
// ascending order from zero, then acc = fma(scale, chain, acc), chains in ascending order. So a token's
// result depends on the columns alone, never on its company. Up to kFew tokens are multiplied while weights
// are decoded: memory is the limit. More read a panel of decoded weights in the first-level cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/layout.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/sources_bf16.h"

namespace sluice::cpu {
namespace {

/// Two blocks of 256 columns take 16 KiB, and their scales 1 or 2.
constexpr int kBf16PanelColumns = 256;
/// Tokens that are multiplied while decoding.
constexpr int kFew = 3;
/// 24 sums, 2 weights and 1 input in 32 registers.
constexpr int kBf16Tile = 12;

// ---- a panel and a tile of tokens

template <class V, int kChain>
struct alignas(64) Bf16Panel {
  static constexpr int kChains = kBf16PanelColumns / kChain;
  std::int32_t weights[kBf16PanelColumns / 2][2][V::kLanes];
  float scales[kChains][2][V::kLanes];  // not written where there are none
};

template <class V, int kChain>
struct Bf16TileWork {
  const Bf16Panel<V, kChain>* panel;
  int columns;  // multiples of 16
  const std::int32_t* input;
  std::size_t input_stride;
  float* out[2];
  std::size_t out_stride;
};

/// Tokens' pairs, reached through one register for three rows (InputRows of multiply.h).
template <int kTokens>
struct Bf16Rows {
  [[gnu::always_inline]] Bf16Rows(const std::int32_t* first, std::size_t row_stride) : stride(row_stride) {
    for (int i = 0; i < (kTokens + 2) / 3; ++i) base[i] = opaque(first + 3 * i * row_stride);
  }
  [[gnu::always_inline]] const std::int32_t* at(int token, int pair) const {
    return base[token / 3] + token % 3 * stride + pair;
  }

  const std::int32_t* base[(kTokens + 2) / 3];
  std::size_t stride;
};

template <class V, int kChain, bool kScaled, int kTokens>
struct Bf16Tile {
  using Reg = typename V::Reg;
  using Work = Bf16TileWork<V, kChain>;
  /// Pairs that are unrolled; columns come in multiples of 16.
  static constexpr int kPairs = kChain % 32 == 0 && kScaled ? 16 : 8;

  /// Not inlined: the tiles are the same for all formats with such chains.
  [[gnu::noinline]] static void run(const Work& work) {
    const int all = work.columns / 2;
    for (int first = 0, c = 0; first < all; first += kChain / 2, ++c) {
      const int last = all - first < kChain / 2 ? all : first + kChain / 2;
      chain(work, c, first, last);
    }
  }

 private:
  [[gnu::always_inline]] static inline void chain(const Work& work, int index, int first, int last) {
    Reg sum[2][kTokens];
    for (auto& tokens : sum)
      for (Reg& value : tokens) value = V::zero();
    for (int i = first; i < last; i += kPairs) {
      const auto* weights = opaque(&work.panel->weights[i]);
      const Bf16Rows<kTokens> input(work.input + i, work.input_stride);
#pragma GCC unroll 16
      for (int k = 0; k < kPairs; ++k) {
        const auto w0 = load(weights[k][0]), w1 = load(weights[k][1]);
#pragma GCC unroll 16
        for (int m = 0; m < kTokens; ++m) {
          const auto x = V::broadcast_dword(input.at(m, k));
          sum[0][m] = V::dot(sum[0][m], w0, x);
          sum[1][m] = V::dot(sum[1][m], w1, x);
        }
      }
    }
    for (int b = 0; b < 2; ++b) {
      float* at = opaque(work.out[b]);
#pragma GCC unroll 16
      for (int m = 0; m < kTokens; ++m, at += work.out_stride)
        V::store(at, kScaled ? V::fma(V::load(work.panel->scales[index][b]), sum[b][m], V::load(at))
                             : V::add(sum[b][m], V::load(at)));
    }
  }

  [[gnu::always_inline]] static inline typename V::Dwords load(const std::int32_t* at) {
    return V::load_dwords(reinterpret_cast<const std::byte*>(at));
  }
};

/// Bf16Tile<..., tokens>::run for a number known at run time.
template <class V, int kChain, bool kScaled, int kTokens = kBf16Tile>
void run_bf16_tile(int tokens, const Bf16TileWork<V, kChain>& work) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) return run_bf16_tile<V, kChain, kScaled, kTokens - 1>(tokens, work);
  }
  Bf16Tile<V, kChain, kScaled, kTokens>::run(work);
}

template <class V, class Source>
struct Bf16Product {
  using Reg = typename V::Reg;
  using Walk = typename Source::Walk;
  static constexpr int kChain = Source::kChain;
  static constexpr bool kScaled = Source::kScaled;
  using Panel = Bf16Panel<V, kChain>;

  static void run(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair) {
      if (a.tokens <= kFew)
        few_tokens(a, pair);
      else
        many(a, pair);
    }
  }

 private:
  static float* out(const Multiplication& a, int block, int pair, int token) {
    return a.out[block] + token * a.out_stride + pair * a.out_step;
  }

  /// few<tokens> for a number known at run time.
  template <int kTokens = kFew>
  static void few_tokens(const Multiplication& a, int pair) {
    if constexpr (kTokens > 1) {
      if (a.tokens < kTokens) return few_tokens<kTokens - 1>(a, pair);
    }
    few<kTokens>(a, pair);
  }

  template <int kTokens>
  static void few(const Multiplication& a, int pair) {
    Reg acc[2][kTokens];
    for (auto& tokens : acc)
      for (Reg& value : tokens) value = V::zero();
    const std::int32_t* input = a.bf16;
    Walk walk(a, pair);
    for (int left = a.groups * Source::kGroup; left > 0; left -= walk.columns(), ++walk) {
      Reg sum[2][kTokens];
      for (auto& tokens : sum)
        for (Reg& value : tokens) value = V::zero();
      walk.prefetch();
      walk.pairs([&](int i, const auto(&w)[2]) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int m = 0; m < kTokens; ++m) {
          const auto x = V::broadcast_dword(input + m * a.bf16_stride + i);
          for (int b = 0; b < 2; ++b) sum[b][m] = V::dot(sum[b][m], w[b], x);
        }
      });
      for (int b = 0; b < 2; ++b)
        for (int m = 0; m < kTokens; ++m)
          acc[b][m] = kScaled ? V::fma(walk.scale(b), sum[b][m], acc[b][m]) : V::add(sum[b][m], acc[b][m]);
      input += walk.columns() / 2;
    }
    for (int b = 0; b < 2; ++b)
      for (int m = 0; m < kTokens; ++m) V::store(out(a, b, pair, m), Source::finish(a, pair, b, acc[b][m]));
  }

  static void many(const Multiplication& a, int pair) {
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(out(a, b, pair, m), V::zero());
    const int tiles = (a.tokens + kBf16Tile - 1) / kBf16Tile;
    const int all = a.groups * Source::kGroup;
    Panel panel;
    Walk walk(a, pair);
    for (int first = 0; first < all; first += kBf16PanelColumns) {
      const int columns = all - first < kBf16PanelColumns ? all - first : kBf16PanelColumns;
      decode(walk, columns, panel);
      // Tiles of about equal height: 13 tokens are 6 and 7, not 12 and 1.
      for (int t = 0; t < tiles; ++t) {
        const int token = a.tokens * t / tiles, end = a.tokens * (t + 1) / tiles;
        run_bf16_tile<V, kChain, kScaled>(end - token,
                                          {.panel = &panel,
                                           .columns = columns,
                                           .input = a.bf16 + token * a.bf16_stride + first / 2,
                                           .input_stride = a.bf16_stride,
                                           .out = {out(a, 0, pair, token), out(a, 1, pair, token)},
                                           .out_stride = a.out_stride});
      }
    }
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) {
        float* at = out(a, b, pair, m);
        V::store(at, Source::finish(a, pair, b, V::load(at)));
      }
  }

  /// The next `columns` columns of a walk.
  static void decode(Walk& walk, int columns, Panel& panel) {
    for (int first = 0, c = 0; first < columns; first += kChain, ++c, ++walk) {
      walk.prefetch();
      auto* to = opaque(&panel.weights[first / 2]);
      walk.pairs([&](int i, const auto(&w)[2]) __attribute__((always_inline)) {
        for (int b = 0; b < 2; ++b) V::store_dwords(to[i][b], w[b]);
      });
      if constexpr (kScaled)
        for (int b = 0; b < 2; ++b) V::store(panel.scales[c][b], walk.scale(b));
    }
  }
};

template <class V, int kPart>
void multiply_int4(const Multiplication& a) {
  if (a.integers.zeros) return Bf16Product<V, Int4Source<V, kPart, true>>::run(a);
  Bf16Product<V, Int4Source<V, kPart, false>>::run(a);
}

/// A table with kernels for rows of bf16.
template <class V>
constexpr KernelTable with_bf16(KernelTable table) {
  table.bf16_pairs = {
      .bf16 = {UnmarkedPairs<V, Bf16Product<V, Bf16Source<V>>>::run},
      .mxfp4 = {Bf16Product<V, LayoutSource<V, Decoder<kMxfp4, E2m1Pairs<V, 32>, E8m0Scale<V>>>>::run},
      .nvfp4 = {Bf16Product<V, LayoutSource<V, Decoder<kNvfp4, E2m1Pairs<V, 16>, E4m3Scale<V>>>>::run},
      .mxfp8 = {Bf16Product<V, LayoutSource<V, Decoder<kMxfp8, E4m3Pairs<V, 32>, E8m0Scale<V>>>>::run},
      .fp8_block128 =
          {Bf16Product<V, LayoutSource<V, Decoder<kFp8Block128, E4m3Pairs<V, 32>, FloatScale<V>>>>::run},
      .fp8_rows = {Bf16Product<V, LayoutSource<V, Decoder<kFp8Rows, E4m3Pairs<V, 16>, NoScale<V>>>>::run},
      .terms = 1,
  };
  table.int4.wholes.bf16 = {multiply_int4<V, 32>};
  table.int4.halves.bf16 = {multiply_int4<V, 16>};
  return table;
}

}  // namespace
}  // namespace sluice::cpu
