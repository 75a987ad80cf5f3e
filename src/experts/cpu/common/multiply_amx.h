// SPDX-License-Identifier: Apache-2.0
// The product of exact weights and rows of one to three bf16 terms (bf16_pairs.h) on tiles, once for all
// formats. Only the kernels.cpp of a backend includes this; everything is in an anonymous namespace (kernel.h
// says why).
//
//   V         a vector of float32 that decodes pairs of bf16 (vector_pairs.h)
//   V::Tiles  configure, load, dot, ... (tiles_amx.h)
//
// Weights are decoded into a panel in the second-level cache's reach, in the order in which a tile takes
// them, and every token of the call reads it. A token's sums depend on the columns alone, never on its
// company. A table may still leave experts of few tokens to its other kernels (TilesFrom), which wait less.
//
// Scales are multiplied into the weights where the product is a bf16 (4-bit and 8-bit floats times a power of
// two, e2m1 times e4m3). A row is then one chain of tiles from end to end. Others end a chain where a scale
// ends: acc = fma(scale, chain, acc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/sources_bf16.h"

namespace sluice::cpu {
namespace {

/// Two blocks of 256 columns take 16 KiB.
constexpr int kTilePanelColumns = 256;
/// Of a tile.
constexpr int kTileTokens = 16, kTilePairs = 16, kTileColumns = 2 * kTilePairs;

/// Powers of two, as bytes of e8m0, that keep codes (2^-9 to 480) and their products with inputs
/// (bf16_pairs.h) normal numbers: 2^-24 to 2^32.
constexpr int kLeastE8m0 = 127 - 24, kMostE8m0 = 127 + 32;

/// Where scales go.
enum class Scaling { sums, weights, weights_where_they_fit };

template <class V>
struct alignas(64) TilePanel {
  std::int32_t weights[kTilePanelColumns / 2][2][V::kLanes];
  float scales[kTilePanelColumns / 16][2][V::kLanes];  // not written where there are none
};

/// Up to 32 tokens and a panel.
template <class V>
struct TilesWork {
  const TilePanel<V>* panel;
  int pairs;        // of columns, whole tiles
  int chain_pairs;  // of pairs that share a scale; 0: the weights have theirs
  int scale_pairs;  // of pairs for each entry of panel.scales
  int rows[2];      // tokens of the two tiles; 0: none in the second
  const std::int32_t* input[2];
  std::size_t input_bytes, term_pairs;  // from one token's to the next; from one term to the next
  int terms;
  float* out[2][2];  // [tile][block]
  std::size_t out_stride;
};

template <class V, bool kBoth>
struct TileSums {
  using Tiles = typename V::Tiles;
  using Work = TilesWork<V>;

  [[gnu::noinline]] static void run(const Work& w) {
    if (w.chain_pairs == 0) return whole(w);
    for (int pair = 0; pair < w.pairs; pair += w.chain_pairs)
      chain(w, pair, w.pairs - pair < w.chain_pairs ? w.pairs : pair + w.chain_pairs);
  }

 private:
  static constexpr std::size_t kPanelStride = 2 * V::kLanes * sizeof(std::int32_t);

  static void whole(const Work& w) {
    const std::size_t stride = w.out_stride * sizeof(float);
    Tiles::template load<0>(w.out[0][0], stride);
    Tiles::template load<1>(w.out[0][1], stride);
    if constexpr (kBoth) {
      Tiles::template load<2>(w.out[1][0], stride);
      Tiles::template load<3>(w.out[1][1], stride);
    }
    add(w, 0, w.pairs);
    Tiles::template store<0>(w.out[0][0], stride);
    Tiles::template store<1>(w.out[0][1], stride);
    if constexpr (kBoth) {
      Tiles::template store<2>(w.out[1][0], stride);
      Tiles::template store<3>(w.out[1][1], stride);
    }
  }

  static void chain(const Work& w, int first, int last) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if constexpr (kBoth) {
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    }
    add(w, first, last);
    alignas(64) float sums[4][kTileTokens][V::kLanes];
    constexpr std::size_t kStride = V::kLanes * sizeof(float);
    Tiles::template store<0>(sums[0], kStride);
    Tiles::template store<1>(sums[1], kStride);
    if constexpr (kBoth) {
      Tiles::template store<2>(sums[2], kStride);
      Tiles::template store<3>(sums[3], kStride);
    }
    const auto& scales = w.panel->scales[first / w.scale_pairs];
    for (int t = 0; t < (kBoth ? 2 : 1); ++t)
      for (int b = 0; b < 2; ++b) {
        const auto scale = V::load(scales[b]);
        float* at = w.out[t][b];
        for (int m = 0; m < w.rows[t]; ++m, at += w.out_stride)
          V::store(at, V::fma(scale, V::load(sums[2 * t + b][m]), V::load(at)));
      }
  }

  /// The smallest terms first.
  [[gnu::always_inline]] static inline void add(const Work& w, int first, int last) {
    for (int pair = first; pair < last; pair += kTilePairs) {
      Tiles::template load<6>(w.panel->weights[pair][0], kPanelStride);
      Tiles::template load<7>(w.panel->weights[pair][1], kPanelStride);
      for (int term = w.terms; term-- > 0;) {
        const std::size_t at = term * w.term_pairs + static_cast<std::size_t>(pair);
        Tiles::template load<4>(w.input[0] + at, w.input_bytes);
        Tiles::template dot<0, 4, 6>();
        Tiles::template dot<1, 4, 7>();
        if constexpr (kBoth) {
          Tiles::template load<5>(w.input[1] + at, w.input_bytes);
          Tiles::template dot<2, 5, 6>();
          Tiles::template dot<3, 5, 7>();
        }
      }
    }
  }
};

/// A Source of sources_bf16.h.
template <class V, class Source, Scaling kScaling>
struct TileProduct {
  using Walk = typename Source::Walk;
  using Panel = TilePanel<V>;
  static constexpr int kChain = Source::kChain;

  static void run(const Multiplication& a) {
    Groups groups(a.tokens);
    for (int pair = 0; pair < a.pairs; ++pair) one_pair(a, pair, groups);
    V::Tiles::release();
  }

 private:
  /// Tokens are taken up to 32 at a time, in groups of about equal size.
  struct Groups {
    explicit Groups(int tokens) : all(tokens) {
      const int count = (tokens + 2 * kTileTokens - 1) / (2 * kTileTokens);
      step = (tokens + count - 1) / count;
    }
    /// The tokens of both tiles of the group that starts at `token`, for which the tiles are made ready.
    void take(int token, int (&rows)[2]) {
      const int count = all - token < step ? all - token : step;
      rows[0] = count <= kTileTokens ? count : (count + 1) / 2;
      rows[1] = count - rows[0];
      if (rows[0] == set[0] && rows[1] == set[1]) return;
      set[0] = rows[0];
      set[1] = rows[1];
      V::Tiles::configure(rows[0], rows[1] == 0 ? 1 : rows[1]);
    }
    int all, step;
    int set[2] = {0, 0};
  };

  static float* out(const Multiplication& a, int block, int pair, int token) {
    return a.out[block] + token * a.out_stride + pair * a.out_step;
  }

  static void one_pair(const Multiplication& a, int pair, Groups& groups) {
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(out(a, b, pair, m), V::zero());
    const int all = a.groups * Source::kGroup;
    Panel panel;
    Walk walk(a, pair);
    for (int first = 0; first < all; first += kTilePanelColumns) {
      const int columns = all - first < kTilePanelColumns ? all - first : kTilePanelColumns;
      TilesWork<V> work{.panel = &panel,
                        .pairs = (columns + kTileColumns - 1) / kTileColumns * kTilePairs,
                        .chain_pairs = decode(walk, columns, panel) ? 0 : Source::scale_columns(a) / 2,
                        .scale_pairs = kChain / 2,
                        .rows = {},
                        .input = {},
                        .input_bytes = a.bf16_stride * sizeof(std::int32_t),
                        .term_pairs = a.bf16_term,
                        .terms = a.bf16_terms,
                        .out = {},
                        .out_stride = a.out_stride};
      for (int token = 0; token < a.tokens; token += groups.step) {
        groups.take(token, work.rows);
        multiply(a, pair, {first, token}, work);
      }
    }
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) {
        float* at = out(a, b, pair, m);
        V::store(at, Source::finish(a, pair, b, V::load(at)));
      }
  }

  struct At {
    int column, token;
  };
  static void multiply(const Multiplication& a, int pair, At at, TilesWork<V>& work) {
    for (int t = 0, token = at.token; t < 2; token += work.rows[t++]) {
      work.input[t] = a.bf16 + token * a.bf16_stride + at.column / 2;
      for (int b = 0; b < 2; ++b) work.out[t][b] = out(a, b, pair, token);
    }
    if (work.rows[1] == 0)
      TileSums<V, false>::run(work);
    else
      TileSums<V, true>::run(work);
  }

  /// The next `columns` columns of a walk, and zeros up to a whole tile. Whether the weights have their
  /// scales.
  static bool decode(Walk& walk, int columns, Panel& panel) {
    if (columns % kTileColumns != 0)
      for (int i = columns / 2; i < columns / 2 + 8; ++i)
        for (int b = 0; b < 2; ++b) V::store(reinterpret_cast<float*>(panel.weights[i][b]), V::zero());
    if constexpr (kScaling == Scaling::weights_where_they_fit) {
      Walk start = walk;
      if (decode_as<Scaling::weights_where_they_fit>(walk, columns, panel)) return true;
      walk = start;
      return decode_as<Scaling::sums>(walk, columns, panel);
    } else {
      return decode_as<kScaling>(walk, columns, panel);
    }
  }

  template <Scaling kHow>
  static bool decode_as(Walk& walk, int columns, Panel& panel) {
    for (int first = 0, c = 0; first < columns; first += kChain, ++c, ++walk) {
      walk.prefetch();
      auto* to = opaque(&panel.weights[first / 2]);
      const auto write = [&](int i, const auto(&w)[2], auto scaled) __attribute__((always_inline)) {
        for (int b = 0; b < 2; ++b) V::store_dwords(to[i][b], scaled(w[b], b));
      };
      if constexpr (kHow == Scaling::weights_where_they_fit) {
        for (int b = 0; b < 2; ++b)
          if (!V::all_within(walk.scale_at(b), kLeastE8m0, kMostE8m0)) return false;
        const typename V::Dwords exponents[2] = {V::e8m0_exponents(walk.scale_at(0)),
                                                 V::e8m0_exponents(walk.scale_at(1))};
        walk.pairs([&](int i, const auto(&w)[2]) __attribute__((always_inline)) {
          write(i, w, [&](auto pair, int b) { return V::add_exponents(pair, exponents[b]); });
        });
      } else if constexpr (kHow == Scaling::weights && Source::kScaled) {
        const typename V::Reg scales[2] = {walk.scale(0), walk.scale(1)};
        walk.pairs([&](int i, const auto(&w)[2]) __attribute__((always_inline)) {
          write(i, w, [&](auto pair, int b) { return V::times(pair, scales[b]); });
        });
      } else {
        walk.pairs([&](int i, const auto(&w)[2])
                       __attribute__((always_inline)) { write(i, w, [&](auto pair, int) { return pair; }); });
        if constexpr (Source::kScaled)
          for (int b = 0; b < 2; ++b) V::store(panel.scales[c][b], walk.scale(b));
      }
    }
    return kHow != Scaling::sums;
  }
};

template <class V>
void multiply_int4_tiles(const Multiplication& a) {
  if (a.integers.zeros) return TileProduct<V, Int4Source<V, kDigitColumns, true>, Scaling::sums>::run(a);
  TileProduct<V, Int4Source<V, kDigitColumns, false>, Scaling::sums>::run(a);
}

/// Tokens of an expert from which on tiles multiply them, by layout.
struct TilesFrom {
  int bf16 = 1, mxfp4 = 1, nvfp4 = 1, mxfp8 = 1, fp8_block128 = 1, fp8_rows = 1, int4 = 1;
};

/// A table with kernels for rows of up to three terms.
template <class V>
constexpr KernelTable with_tiles(KernelTable table, const TilesFrom& from) {
  constexpr auto kFit = Scaling::weights_where_they_fit;
  table.bf16_pairs = {
      .bf16 = {UnmarkedPairs<V, TileProduct<V, Bf16Source<V>, Scaling::weights>>::run, from.bf16},
      .mxfp4 = {TileProduct<V, LayoutSource<V, Decoder<kMxfp4, E2m1Pairs<V, 32>, E8m0Scale<V>>>, kFit>::run,
                from.mxfp4},
      .nvfp4 = {TileProduct<V, LayoutSource<V, Decoder<kNvfp4, E2m1Pairs<V, 16>, E4m3Scale<V>>>,
                            Scaling::weights>::run,
                from.nvfp4},
      .mxfp8 = {TileProduct<V, LayoutSource<V, Decoder<kMxfp8, E4m3Pairs<V, 32>, E8m0Scale<V>>>, kFit>::run,
                from.mxfp8},
      .fp8_block128 = {TileProduct<V, LayoutSource<V, Decoder<kFp8Block128, E4m3Pairs<V, 32>, FloatScale<V>>>,
                                   Scaling::sums>::run,
                       from.fp8_block128},
      .fp8_rows = {TileProduct<V, LayoutSource<V, Decoder<kFp8Rows, E4m3Pairs<V, 16>, NoScale<V>>>,
                               Scaling::weights>::run,
                   from.fp8_rows},
      .terms = 3,
  };
  table.int4.wholes.bf16 = {multiply_int4_tiles<V>, from.int4};
  return table;
}

}  // namespace
}  // namespace sluice::cpu
