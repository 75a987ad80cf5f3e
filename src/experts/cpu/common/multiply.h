// SPDX-License-Identifier: Apache-2.0
// The matrix product over packed weights, once for all vector widths and formats. Only the kernels.cpp of a
// backend includes this; everything is in an anonymous namespace (kernel.h says why).
//
//   V  a vector of float32: Reg, kLanes, kTile, load, store, broadcast, mul, add, fma
//   D  a format: kLayout, kUnit, columns<B>() which decodes kChain columns of B blocks, and scale()
//
// One token (and two) is bound by memory: weights are decoded into registers and used there. With more tokens
// a panel of decoded float32 is made once for all of them, small enough for the first-level cache, and the
// loop is bound by multiply-adds. Both sum in the order that kChain describes, so a token's result does not
// depend on its company.
#pragma once

#include <cstddef>

#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/layout.h"

namespace sluice::cpu {
namespace {

/// Columns of a panel: 2 blocks of 8 or 16 rows take 8 or 16 KiB of a first-level cache of at least 32.
constexpr int kPanelColumns = 128;

template <class V>
struct alignas(64) Panel {
  float weights[kPanelColumns][2][V::kLanes];
  float scales[kPanelColumns / kChain][2][V::kLanes];  // of a group
};

/// A tile's work: adds the products of `groups` groups of `chains` chains to `out`, [tokens, out_stride] of
/// each block.
template <class V>
struct TileWork {
  const Panel<V>* panel;
  int groups, chains;
  const float* input;
  std::size_t input_stride;
  float* out[2];
  std::size_t out_stride;
};

template <class V, int kTokens>
struct Tile {
  using Reg = typename V::Reg;

  static void run(const TileWork<V>& work) {
    const float* weights = work.panel->weights[0][0];
    const float* input = work.input;
    for (int g = 0; g < work.groups; ++g)
      for (int c = 0; c < work.chains; ++c, weights += 2 * V::kLanes * kChain, input += kChain)
        chain(weights, work.panel->scales[g], input, work);
  }

 private:
  [[gnu::always_inline]] static inline void chain(const float* weights, const float (&scales)[2][V::kLanes],
                                                  const float* input, const TileWork<V>& work) {
    Reg sum[2][kTokens];
#pragma GCC unroll 16
    for (int k = 0; k < kChain; ++k) {
      const Reg w[2] = {V::load(weights + 2 * V::kLanes * k),
                        V::load(weights + 2 * V::kLanes * k + V::kLanes)};
#pragma GCC unroll 16
      for (int m = 0; m < kTokens; ++m) {
        const Reg x = V::broadcast(input + m * work.input_stride + k);
        for (int b = 0; b < 2; ++b) sum[b][m] = k == 0 ? V::mul(w[b], x) : V::fma(w[b], x, sum[b][m]);
      }
    }
    for (int b = 0; b < 2; ++b)
#pragma GCC unroll 16
      for (int m = 0; m < kTokens; ++m) {
        float* at = work.out[b] + m * work.out_stride;
        V::store(at, V::fma(V::load(scales[b]), sum[b][m], V::load(at)));
      }
  }
};

/// Tile<V, tokens>::run for a number known at run time.
template <class V, int kTokens = V::kTile>
void run_tile(int tokens, const TileWork<V>& work) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) return run_tile<V, kTokens - 1>(tokens, work);
  }
  Tile<V, kTokens>::run(work);
}

template <class V, class D>
struct Product {
  using Reg = typename V::Reg;
  static constexpr int kLanes = V::kLanes;
  static constexpr Layout kLayout = D::kLayout;
  static constexpr int kChains = kLayout.group / kChain;
  static constexpr int kChainBytes = kLayout.code_bytes(kLanes) / kChains;
  static constexpr int kBlockBytes = kLayout.block_bytes(kLanes);
  static constexpr int kGroupBytes = kLayout.group_bytes(kLanes);
  static constexpr int kPanelGroups = kPanelColumns / kLayout.group;
  static_assert(kPanelGroups * kLayout.group == kPanelColumns);

  static void run(const Multiplication& a) {
    if (a.tokens <= 2) {
      direct_tokens(a);
    } else {
      for (int p = 0; p < a.pairs; ++p) panel_pair(a, p);
    }
  }

 private:
  static const std::byte* weights(const Multiplication& a, int pair) {
    return a.weights + pair * a.pair_bytes;
  }
  static float* out(const Multiplication& a, int block, int pair, int token) {
    return a.out[block] + token * a.out_stride + pair * a.out_step;
  }

  static Reg finish(Reg sum, const std::byte* pair, std::size_t factors_offset, int block) {
    if constexpr (D::kUnit != 1.0f) sum = V::mul(sum, V::broadcast(&kUnit));
    if constexpr (kLayout.factors) {
      const auto* factors = reinterpret_cast<const float*>(pair + factors_offset);
      return V::mul(sum, V::load(factors + block * kLanes));
    }
    return sum;
  }
  static constexpr float kUnit = D::kUnit;

  // ---- few tokens: decode in registers

  static void direct_tokens(const Multiplication& a) {
    int pair = 0;
    if (a.tokens == 1) {
      for (; pair + 2 <= a.pairs; pair += 2) direct<2, 1>(a, pair);
      if (pair < a.pairs) direct<1, 1>(a, pair);
    } else {
      for (; pair < a.pairs; ++pair) direct<1, 2>(a, pair);
    }
  }

  template <int kPairs, int kTokens>
  static void direct(const Multiplication& a, int pair) {
    constexpr int kBlocks = 2 * kPairs;
    Reg acc[kBlocks][kTokens];
    for (int b = 0; b < kBlocks; ++b)
      for (int m = 0; m < kTokens; ++m) acc[b][m] = V::zero();
    const std::byte* base = weights(a, pair);
    const float* input = a.input;
    for (int g = 0; g < a.groups; ++g, base += kGroupBytes) {
      const std::byte* block[kBlocks];
      for (int b = 0; b < kBlocks; ++b) block[b] = base + (b / 2) * a.pair_bytes + (b % 2) * kBlockBytes;
      direct_group<kBlocks, kTokens>(block, input, a.input_stride, acc);
      input += kLayout.group;
    }
    for (int b = 0; b < kBlocks; ++b)
      for (int m = 0; m < kTokens; ++m)
        V::store(out(a, b % 2, pair + b / 2, m),
                 finish(acc[b][m], weights(a, pair + b / 2), a.factors_offset, b % 2));
  }

  template <int kBlocks, int kTokens>
  [[gnu::always_inline]] static inline void direct_group(const std::byte* const (&block)[kBlocks],
                                                         const float* input, std::size_t stride,
                                                         Reg (&acc)[kBlocks][kTokens]) {
    for (int c = 0; c < kChains; ++c, input += kChain) {
      Reg sum[kBlocks][kTokens];
      const std::byte* codes[kBlocks];
      for (int b = 0; b < kBlocks; ++b) codes[b] = block[b] + c * kChainBytes;
      D::template columns<kBlocks>(
          codes, [&](int k, const Reg(&w)[kBlocks]) __attribute__((always_inline)) {
            for (int m = 0; m < kTokens; ++m) {
              const Reg x = V::broadcast(input + m * stride + k);
              for (int b = 0; b < kBlocks; ++b)
                sum[b][m] = k == 0 ? V::mul(w[b], x) : V::fma(w[b], x, sum[b][m]);
            }
          });
      for (int b = 0; b < kBlocks; ++b)
        for (int m = 0; m < kTokens; ++m) {
          if constexpr (kLayout.scales == Scales::none) {
            acc[b][m] = V::add(sum[b][m], acc[b][m]);
          } else {
            acc[b][m] = V::fma(D::scale(block[b] + kLayout.code_bytes(kLanes)), sum[b][m], acc[b][m]);
          }
        }
    }
  }

  // ---- many tokens: decode once into a panel

  static void panel_pair(const Multiplication& a, int pair) {
    const int tiles = (a.tokens + V::kTile - 1) / V::kTile;
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(out(a, b, pair, m), V::zero());
    Panel<V> panel;
    for (int first = 0; first < a.groups; first += kPanelGroups) {
      const int groups = a.groups - first < kPanelGroups ? a.groups - first : kPanelGroups;
      decode(weights(a, pair) + static_cast<std::size_t>(first) * kGroupBytes, groups, panel);
      const float* input = a.input + static_cast<std::size_t>(first) * kLayout.group;
      // Tiles of about equal height: 7 tokens are 4 and 3, not 6 and 1.
      for (int t = 0; t < tiles; ++t) {
        const int token = a.tokens * t / tiles, end = a.tokens * (t + 1) / tiles;
        run_tile<V>(end - token, {.panel = &panel,
                                  .groups = groups,
                                  .chains = kChains,
                                  .input = input + token * a.input_stride,
                                  .input_stride = a.input_stride,
                                  .out = {out(a, 0, pair, token), out(a, 1, pair, token)},
                                  .out_stride = a.out_stride});
      }
    }
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) {
        float* at = out(a, b, pair, m);
        V::store(at, finish(V::load(at), weights(a, pair), a.factors_offset, b));
      }
  }

  static void decode(const std::byte* group, int groups, Panel<V>& panel) {
    for (int g = 0; g < groups; ++g, group += kGroupBytes) {
      for (int c = 0; c < kChains; ++c) {
        const std::byte* const codes[2] = {group + c * kChainBytes, group + kBlockBytes + c * kChainBytes};
        auto* to = panel.weights + (g * kChains + c) * kChain;
        D::template columns<2>(
            codes, [&](int k, const Reg(&w)[2]) __attribute__((always_inline)) {
              V::store(to[k][0], w[0]);
              V::store(to[k][1], w[1]);
            });
      }
      for (int b = 0; b < 2; ++b)
        V::store(panel.scales[g][b], D::scale(group + b * kBlockBytes + kLayout.code_bytes(kLanes)));
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
