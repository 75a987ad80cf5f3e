// SPDX-License-Identifier: Apache-2.0
// The matrix product over packed weights, once for all vector widths and formats. Only the kernels.cpp of a
// backend includes this; everything is in an anonymous namespace (kernel.h says why).
//
//   V  a vector of float32: Reg, kLanes, kTile, load, store, broadcast, mul, add, fma, ...
//   D  a format (decode.h)
//
// With few tokens weights are decoded into registers and used there: memory is the limit, or the decoding.
// With more a panel of decoded float32 is made once for all of them, small enough for the first-level cache,
// and multiply-adds are the limit. Both sum in the order that kChain describes, so a token's result does not
// depend on its company. Formats with digits (multiply_digits.h) come here only for rows that have
// none (to_digits.h).
#pragma once

#include <cstddef>

#include "experts/cpu/common/decode.h"
#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/layout.h"
#include "experts/cpu/common/multiply_digits.h"
#include "experts/cpu/common/multiply_integers.h"

namespace sluice::cpu {
namespace {

/// A pointer that the compiler knows nothing about, so that it does not keep one more pointer for every row
/// it leads to.
template <class T>
[[gnu::always_inline]] inline T* opaque(T* pointer) {
  asm("" : "+r"(pointer));
  return pointer;
}

/// Inputs of several tokens at one column, reached through one register for three rows: base, base + stride
/// and base + 2 stride are addresses that an instruction can form, and 12 row pointers would not fit the
/// registers.
template <int kTokens>
struct InputRows {
  [[gnu::always_inline]] InputRows(const float* first, std::size_t row_stride) : stride(row_stride) {
    for (int i = 0; i < (kTokens + 2) / 3; ++i) base[i] = opaque(first + 3 * i * row_stride);
  }
  [[gnu::always_inline]] const float* at(int token, int column) const {
    return base[token / 3] + token % 3 * stride + column;
  }

  const float* base[(kTokens + 2) / 3];
  std::size_t stride;
};

// ---- a panel and a tile of tokens

/// Columns of a panel: 2 blocks of 8 or 16 rows take 8 or 16 KiB of a first-level cache of at least 32.
constexpr int kPanelColumns = 256;

constexpr int kPanelChains = kPanelColumns / kChain;

template <class V>
struct alignas(64) PanelChain {
  float weights[kChain][2][V::kLanes];
  float scales[2][V::kLanes];
};

/// Adds the products of `chains` chains to `out`, [tokens, out_stride] of each block.
template <class V>
struct TileWork {
  const PanelChain<V>* panel;
  int chains;
  const float* input;
  std::size_t input_stride;
  float* out[2];
  std::size_t out_stride;
};

template <class V, int kTokens>
struct Tile {
  using Reg = typename V::Reg;

  /// Not inlined: the tiles are the same for all formats.
  [[gnu::noinline]] static void run(const TileWork<V>& work) {
    const float* input = work.input;
    for (int c = 0; c < work.chains; ++c, input += kChain)
      chain(work.panel[c], {input, work.input_stride}, work);
  }

 private:
  [[gnu::always_inline]] static inline void chain(const PanelChain<V>& panel, const InputRows<kTokens>& input,
                                                  const TileWork<V>& work) {
    Reg sum[2][kTokens];
#pragma GCC unroll 16
    for (int k = 0; k < kChain; ++k) {
      const Reg w[2] = {V::load(panel.weights[k][0]), V::load(panel.weights[k][1])};
#pragma GCC unroll 16
      for (int m = 0; m < kTokens; ++m) {
        const Reg x = V::broadcast(input.at(m, k));
        for (int b = 0; b < 2; ++b) sum[b][m] = k == 0 ? V::mul(w[b], x) : V::fma(w[b], x, sum[b][m]);
      }
    }
    for (int b = 0; b < 2; ++b) {
      float* at = opaque(work.out[b]);
#pragma GCC unroll 16
      for (int m = 0; m < kTokens; ++m, at += work.out_stride)
        V::store(at, V::fma(V::load(panel.scales[b]), sum[b][m], V::load(at)));
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

// ---- a product

template <class V, class D>
struct Product {
  using Reg = typename V::Reg;
  static constexpr int kLanes = V::kLanes;
  static constexpr Layout kLayout = D::kLayout;
  static constexpr int kChains = kLayout.group / kChain;
  static constexpr int kSteps = kChain / D::kStep;
  static constexpr int kCodeBytes = kLayout.code_bytes(kLanes);
  static constexpr int kChainBytes = kCodeBytes / kChains;
  static constexpr int kBlockBytes = kLayout.block_bytes(kLanes);
  static constexpr int kGroupBytes = kLayout.group_bytes(kLanes);
  /// Of a panel: two blocks of rows take 17 KiB of a first-level cache of at least 32.
  static constexpr int kPanelChains = 128 / kLanes;
  /// Plain numbers cost nothing to decode: a panel would only be a copy.
  static constexpr bool kPlain = kLayout.code_bits >= 16;
  /// Bytes that are asked for ahead of a walk over cold weights. MXFP4 at one token, 2 threads of a Sapphire
  /// Rapids: 17 GB/s without, 24 at 1 KiB, 27 at 2, 30 from 4 on.
  static constexpr int kAhead = 8192;

  static void run(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair) {
      if (kPlain || a.tokens <= V::kDirect)
        direct_pair(a, pair);
      else
        panel_pair(a, pair);
    }
  }

 private:
  static constexpr float kUnit = D::kUnit;

  static const std::byte* weights(const Multiplication& a, int pair) {
    return a.weights + pair * a.pair_bytes;
  }
  static float* out(const Multiplication& a, int block, int pair, int token) {
    return a.out[block] + token * a.out_stride + pair * a.out_step;
  }

  static Reg finish(const Multiplication& a, int pair, int block, Reg sum) {
    if constexpr (kUnit != 1.0f) sum = V::mul(sum, V::broadcast(&kUnit));
    if constexpr (!kLayout.factors) return sum;
    const auto* factors = reinterpret_cast<const float*>(weights(a, pair) + a.factors_offset);
    return V::mul(sum, V::load(factors + block * kLanes));
  }

  // ---- few tokens: decode in registers

  /// Where a tile starts.
  struct At {
    int pair, token;
  };

  static void direct_pair(const Multiplication& a, int pair) {
    const int tiles = (a.tokens + V::kDirect - 1) / V::kDirect;
    for (int t = 0; t < tiles; ++t) {
      const int token = a.tokens * t / tiles, end = a.tokens * (t + 1) / tiles;
      direct_tile(a, {pair, token}, end - token);
    }
  }

  /// direct<tokens> for a number known at run time.
  template <int kTokens = V::kDirect>
  static void direct_tile(const Multiplication& a, At at, int tokens) {
    if constexpr (kTokens > 1) {
      if (tokens < kTokens) return direct_tile<kTokens - 1>(a, at, tokens);
    }
    direct<kTokens>(a, at);
  }

  template <int kTokens>
  static void direct(const Multiplication& a, At at) {
    // One token takes two chains at once: four sums hide the latency of a multiply-add.
    constexpr int kAtOnce = kTokens == 1 ? 2 : 1;
    constexpr int kGroups = kChains == 1 ? kAtOnce : 1;
    Reg acc[2][kTokens];
    for (auto& tokens : acc)
      for (Reg& value : tokens) value = V::zero();
    const std::byte* group = weights(a, at.pair);
    const float* input = a.input + at.token * a.input_stride;
    int g = 0;
    // Bytes for each turn to ask for: a core waits when more than its 10 to 20 fill buffers are asked for at
    // once.
    constexpr int kBytes = kGroupBytes * kAtOnce / kChains;
    for (; g + kGroups <= a.groups; g += kGroups, group += kGroups * kGroupBytes)
      for (int c = 0; c < kChains * kGroups; c += kAtOnce, input += kAtOnce * kChain) {
        const std::byte* ahead = group + kAhead + c / kAtOnce * kBytes;
        for (int line = 0; line < kBytes; line += 64) V::prefetch(ahead + line);
        direct_chains<kAtOnce, kTokens>(group, kChains == 1 ? 0 : c, {input, a.input_stride}, acc);
      }
    for (; g < a.groups; ++g, group += kGroupBytes, input += kChain)
      direct_chains<1, kTokens>(group, 0, {input, a.input_stride}, acc);
    for (int b = 0; b < 2; ++b)
      for (int m = 0; m < kTokens; ++m)
        V::store(out(a, b, at.pair, at.token + m), finish(a, at.pair, b, acc[b][m]));
  }

  /// `kAtOnce` chains, of one group or of as many groups of one chain.
  template <int kAtOnce, int kTokens>
  [[gnu::always_inline]] static inline void direct_chains(const std::byte* group, int chain,
                                                          const InputRows<kTokens>& input,
                                                          Reg (&acc)[2][kTokens]) {
    Reg sum[kAtOnce][2][kTokens];
#pragma GCC unroll 16
    for (int s = 0; s < kSteps; ++s) {
#pragma GCC unroll 2
      for (int i = 0; i < kAtOnce; ++i) {
        const std::byte* codes = kChains == 1 ? group + i * kGroupBytes : group + (chain + i) * kChainBytes;
        D::template step<2>(
            {codes, codes + kBlockBytes}, s, [&](int k, const Reg(&w)[2]) __attribute__((always_inline)) {
              for (int m = 0; m < kTokens; ++m) {
                const Reg x = V::broadcast(input.at(m, i * kChain + k));
                for (int b = 0; b < 2; ++b)
                  sum[i][b][m] = k == 0 ? V::mul(w[b], x) : V::fma(w[b], x, sum[i][b][m]);
              }
            });
      }
    }
    for (int i = 0; i < kAtOnce; ++i)
      for (int b = 0; b < 2; ++b)
        for (int m = 0; m < kTokens; ++m) {
          const std::byte* scales =
              group + (kChains == 1 ? i * kGroupBytes : 0) + b * kBlockBytes + kCodeBytes;
          acc[b][m] = kLayout.scales == Scales::none ? V::add(sum[i][b][m], acc[b][m])
                                                     : V::fma(D::scale(scales), sum[i][b][m], acc[b][m]);
        }
  }

  // ---- many tokens: decode once into a panel

  static void panel_pair(const Multiplication& a, int pair) {
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(out(a, b, pair, m), V::zero());
    const int tiles = (a.tokens + V::kTile - 1) / V::kTile;
    const int all = a.groups * kChains;
    PanelChain<V> panel[kPanelChains];
    for (int first = 0; first < all; first += kPanelChains) {
      const int chains = all - first < kPanelChains ? all - first : kPanelChains;
      for (int c = 0; c < chains; ++c)
        decode(weights(a, pair) + (first + c) / kChains * static_cast<std::size_t>(kGroupBytes),
               (first + c) % kChains, panel[c]);
      const float* input = a.input + first * kChain;
      // Tiles of about equal height: 7 tokens are 3 and 4, not 6 and 1.
      for (int t = 0; t < tiles; ++t) {
        const int token = a.tokens * t / tiles, end = a.tokens * (t + 1) / tiles;
        run_tile<V>(end - token, {.panel = panel,
                                  .chains = chains,
                                  .input = input + token * a.input_stride,
                                  .input_stride = a.input_stride,
                                  .out = {out(a, 0, pair, token), out(a, 1, pair, token)},
                                  .out_stride = a.out_stride});
      }
    }
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b)
        V::store(out(a, b, pair, m), finish(a, pair, b, V::load(out(a, b, pair, m))));
  }

  static void decode(const std::byte* group, int chain, PanelChain<V>& to) {
    const std::byte* codes = group + chain * kChainBytes;
    // The next panel's, for which the tiles of this one leave the time.
    for (int line = 0; line < kGroupBytes / kChains; line += 64)
      V::prefetch(codes + kPanelChains * (kGroupBytes / kChains) + line);
#pragma GCC unroll 16
    for (int s = 0; s < kSteps; ++s)
      D::template step<2>(
          {codes, codes + kBlockBytes}, s, [&](int k, const Reg(&w)[2]) __attribute__((always_inline)) {
            V::store(to.weights[k][0], w[0]);
            V::store(to.weights[k][1], w[1]);
          });
    for (int b = 0; b < 2; ++b) V::store(to.scales[b], D::scale(group + b * kBlockBytes + kCodeBytes));
  }
};

template <class V, class D>
constexpr DigitKernels digit_kernels() {
  return {.one = DigitProduct<V, D>::one, .several = DigitProduct<V, D>::several};
}

/// All formats for one vector; Fp4 decodes codes of 4 bits.
template <class V, class Fp4>
constexpr KernelTable make_table() {
  return {
      .lanes = V::kLanes,
      .f32 = Product<V, Decoder<kF32, F32Codes<V>, NoScale<V>>>::run,
      .f16 = Product<V, Decoder<kF16, F16Codes<V>, NoScale<V>>>::run,
      .bf16 = Product<V, Decoder<kBf16, Bf16Codes<V>, NoScale<V>>>::run,
      .mxfp4 = Product<V, Decoder<kMxfp4, Fp4, E8m0Scale<V>>>::run,
      .nvfp4 = Product<V, Decoder<kNvfp4, Fp4, E4m3Scale<V>>>::run,
      .mxfp8 = Product<V, Decoder<kMxfp8, E4m3Codes<V>, E8m0Scale<V>>>::run,
      .fp8_block128 = Product<V, Decoder<kFp8Block128, E4m3Codes<V>, FloatScale<V>>>::run,
      .fp8_rows = Product<V, Decoder<kFp8Rows, E4m3Codes<V>, NoScale<V>>>::run,
      .mxfp4_digits = digit_kernels<V, Decoder<kMxfp4, Fp4, E8m0Scale<V>>>(),
      .nvfp4_digits = digit_kernels<V, Decoder<kNvfp4, Fp4, E4m3Scale<V>>>(),
      .int2 = integer_kernels<V, 2>(),
      .int3 = integer_kernels<V, 3>(),
      .int4 = integer_kernels<V, 4>(),
      .int5 = integer_kernels<V, 5>(),
      .int6 = integer_kernels<V, 6>(),
      .int7 = integer_kernels<V, 7>(),
      .int8 = integer_kernels<V, 8>(),
  };
}

}  // namespace
}  // namespace sluice::cpu
