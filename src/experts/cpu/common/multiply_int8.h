// SPDX-License-Identifier: Apache-2.0
// The product of codes that are small integers and inputs in int8 (int8.h), once for all vector widths and
// formats. Only the kernels.cpp of a backend includes this; everything is in an anonymous namespace (kernel.h
// says why).
//
// For every group of columns that share a scale:  sum of (code - zero) * q, exactly;  as float32, exactly (it
// is below 2^24);  times the step, rounded;  acc = fma(scale, that, acc). Where a minimum is subtracted from
// the weights, scale * sum of code * q and minimum * sum of q may both be far larger than what is left of
// them: with p = -minimum * sum of q, rounded, and e what that rounding lost, the row gets
// acc = fma(step, fma(scale, sum, p) + e, acc). Groups come in ascending order and an integer sum has none,
// so that any vector, tile and batch gives the same bits.
//
// Any number of tokens takes one way: a panel of codes as bytes, small enough for the first-level cache, and
// tiles of tokens with all their sums in registers. One token, too: writing the panel costs it less than
// memory does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/int8.h"
#include "experts/cpu/common/multiply.h"

namespace sluice::cpu {
namespace {

/// How the codes of a format are multiplied.
///
///   group     columns that share a scale, 32 or 16
///   most      the largest code
///   farthest  the largest difference of a code and a zero point
///   minimums  a minimum is subtracted from the weights of every group
struct Int8Shape {
  int group, most, farthest = most;
  bool minimums = false;
};

template <class V, Int8Shape kShape>
struct Int8Tiles {
  using Reg = typename V::Reg;
  using Dwords = typename V::Dwords;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kGroup = kShape.group;
  static constexpr int kVectors = kGroup / 4;
  /// Groups that share a step.
  static constexpr int kGroupsAStep = kDigitColumns / kGroup;
  /// Without VNNI two products of bytes are added to a word, where those of codes of 8 bits may not fit: they
  /// are taken as two nibbles, each in a panel of its own.
  static constexpr int kNibbles = kShape.most > 127 && !AddsProducts<V> ? 2 : 1;
  static constexpr int kMostFactor = kNibbles == 2 ? 15 : kShape.most;
  /// Without VNNI all products of a group fit words, less what zero points contribute: sums may wrap on the
  /// way, and no others are kept beside them.
  static constexpr bool kInWords =
      !AddsProducts<V> && kNibbles == 1 && kShape.farthest * kMostInt8 * 2 * kVectors <= 32767;
  static constexpr int kTile = kInWords ? V::kInt8WordTile : V::kInt8Tile;
  /// Otherwise vectors whose products fit a word together.
  static constexpr int kFit = 32767 / (2 * kMostInt8 * kMostFactor);
  static_assert(AddsProducts<V> || kFit >= 1);
  static constexpr int kFitting = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  static constexpr int kChunk = kFitting < kVectors ? kFitting : kVectors;

  struct alignas(64) PanelGroup : PanelMinimums<V, kShape.minimums> {
    std::int16_t codes[kNibbles][kVectors][2][2 * kLanes];  // four columns of every row, a byte each
    std::int16_t zeros[2][2 * kLanes];                      // minus the zero points, twice
    float scales[2][kLanes];
  };
  static constexpr int kPanelGroups = 256 / kGroup;

  static float* out(const Multiplication& a, int block, int pair, int token) {
    return a.out[block] + token * a.out_stride + pair * a.out_step;
  }

  /// Four columns of a block's rows, codes as unsigned bytes.
  [[gnu::always_inline]] static inline void store_codes(PanelGroup& to, int vector, int block, Dwords codes) {
    if constexpr (kNibbles == 2) {
      V::store_words(to.codes[0][vector][block], V::low_nibbles(codes));
      V::store_words(to.codes[1][vector][block], V::high_nibbles(codes));
    } else {
      V::store_words(to.codes[0][vector][block], codes);
    }
  }

  /// `decode(first, count, panel)` writes groups first to first + count; it is called in ascending order.
  /// The sums are left in `out`.
  template <class Decode>
  [[gnu::always_inline]] static inline void pair(const Multiplication& a, int pair, Decode&& decode,
                                                 int all) {
    for (int m = 0; m < a.tokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(out(a, b, pair, m), V::zero());
    const int tiles = (a.tokens + kTile - 1) / kTile;
    PanelGroup panel[kPanelGroups];
    for (int first = 0; first < all; first += kPanelGroups) {
      const int groups = all - first < kPanelGroups ? all - first : kPanelGroups;
      decode(first, groups, panel);
      for (int t = 0; t < tiles; ++t) {
        const int token = a.tokens * t / tiles, end = a.tokens * (t + 1) / tiles;
        tile(end - token, {.panel = panel,
                           .groups = groups,
                           .input = static_cast<const std::byte*>(a.digits) + token * a.digits_stride +
                                    first / kGroupsAStep * sizeof(Int8Columns),
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
  template <int kTokens = kTile>
  static void tile(int tokens, const TileWork& work) {
    if constexpr (kTokens > 1) {
      if (tokens < kTokens) return tile<kTokens - 1>(tokens, work);
    }
    run_tile<kTokens>(work);
  }

  /// Not inlined: the tiles are the same for all formats of a shape.
  template <int kTokens>
  [[gnu::noinline]] static void run_tile(const TileWork& work) {
    Reg acc[2][kTokens];
    const Int8Columns* input[kTokens];
#pragma GCC unroll 6
    for (int m = 0; m < kTokens; ++m) {
      input[m] = reinterpret_cast<const Int8Columns*>(work.input + m * work.input_stride);
      for (int b = 0; b < 2; ++b) acc[b][m] = V::load(work.out[b] + m * work.out_stride);
    }
    const PanelGroup *group = work.panel, *const end = group + work.groups;
    for (; group + kGroupsAStep <= end; group += kGroupsAStep) {
      add_group<kTokens, 0>(*group, input, acc);
      if constexpr (kGroupsAStep == 2) add_group<kTokens, 1>(group[1], input, acc);
#pragma GCC unroll 6
      for (int m = 0; m < kTokens; ++m) ++input[m];
    }
    // An odd group at the end has a step of its own.
    if constexpr (kGroupsAStep == 2)
      if (group < end) add_group<kTokens, 0>(*group, input, acc);
#pragma GCC unroll 6
    for (int m = 0; m < kTokens; ++m)
      for (int b = 0; b < 2; ++b) V::store(work.out[b] + m * work.out_stride, acc[b][m]);
  }

  /// Group kPart of a step.
  template <int kTokens, int kPart>
  [[gnu::always_inline]] static inline void add_group(const PanelGroup& group,
                                                      const Int8Columns* const (&input)[kTokens],
                                                      Reg (&acc)[2][kTokens]) {
    Dwords sum[2][kTokens];
    constexpr Int8Sums kSums = kGroupsAStep == 1 ? kInt8Whole : kPart == 0 ? kInt8First : kInt8Second;
#pragma GCC unroll 6
    for (int m = 0; m < kTokens; ++m) {
      const Dwords sums = V::broadcast_dword(&input[m]->sums[kSums]);
      for (int b = 0; b < 2; ++b) {
        const Dwords zeros = V::load_words(group.zeros[b]);
        sum[b][m] = kInWords ? V::multiply_low_words(zeros, sums) : V::multiply_words(zeros, sums);
      }
    }
    if constexpr (AddsProducts<V>) {
      at_once<kTokens, kPart>(group, input, sum);
    } else if constexpr (kInWords) {
      in_words<kTokens, kPart>(group, input, sum);
    } else {
#pragma GCC unroll 8
      for (int first = 0; first < kVectors; first += kChunk)
#pragma GCC unroll 2
        for (int nibble = 0; nibble < kNibbles; ++nibble)
          add_chunk<kTokens, kPart>(group, input, {nibble, first}, sum);
    }
#pragma GCC unroll 6
    for (int m = 0; m < kTokens; ++m) {
      const Reg step = V::broadcast(&input[m]->step);
      for (int b = 0; b < 2; ++b) {
        const Reg codes = V::to_float(sum[b][m]), scale = V::load(group.scales[b]);
        if constexpr (kShape.minimums) {
          const Reg minimum = V::load(group.minimums[b]), sums = V::broadcast(&input[m]->sum);
          const Reg product = V::mul(minimum, sums);
          const Reg lost = V::fma(minimum, sums, V::mul(product, V::set(-1)));
          acc[b][m] = V::fma(step, V::add(V::fma(scale, codes, product), lost), acc[b][m]);
        } else {
          acc[b][m] = V::fma(scale, V::mul(codes, step), acc[b][m]);
        }
      }
    }
  }

  template <int kTokens, int kPart>
  [[gnu::always_inline]] static inline void at_once(const PanelGroup& group,
                                                    const Int8Columns* const (&input)[kTokens],
                                                    Dwords (&sum)[2][kTokens]) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Dwords w[2] = {V::load_words(group.codes[0][v][0]), V::load_words(group.codes[0][v][1])};
#pragma GCC unroll 6
      for (int m = 0; m < kTokens; ++m) {
        const Dwords x = V::broadcast_dword(&input[m]->codes[kPart * kVectors + v]);
        for (int b = 0; b < 2; ++b) sum[b][m] = V::dot_bytes(sum[b][m], w[b], x);
      }
    }
  }

  /// Words that end up as sums of pairs.
  template <int kTokens, int kPart>
  [[gnu::always_inline]] static inline void in_words(const PanelGroup& group,
                                                     const Int8Columns* const (&input)[kTokens],
                                                     Dwords (&sum)[2][kTokens]) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Dwords w[2] = {V::load_words(group.codes[0][v][0]), V::load_words(group.codes[0][v][1])};
#pragma GCC unroll 6
      for (int m = 0; m < kTokens; ++m) {
        const Dwords x = V::broadcast_dword(&input[m]->codes[kPart * kVectors + v]);
        for (int b = 0; b < 2; ++b) sum[b][m] = V::add_words(sum[b][m], V::multiply_bytes(w[b], x));
      }
    }
#pragma GCC unroll 6
    for (int m = 0; m < kTokens; ++m)
      for (int b = 0; b < 2; ++b) sum[b][m] = V::add_pairs(sum[b][m]);
  }

  struct Chunk {
    int nibble, first;
  };

  /// Products of vectors that fit words together.
  template <int kTokens, int kPart>
  [[gnu::always_inline]] static inline void add_chunk(const PanelGroup& group,
                                                      const Int8Columns* const (&input)[kTokens], Chunk chunk,
                                                      Dwords (&sum)[2][kTokens]) {
    Dwords words[2][kTokens];
#pragma GCC unroll 8
    for (int v = 0; v < kChunk; ++v) {
      const int vector = chunk.first + v;
      const Dwords w[2] = {V::load_words(group.codes[chunk.nibble][vector][0]),
                           V::load_words(group.codes[chunk.nibble][vector][1])};
#pragma GCC unroll 6
      for (int m = 0; m < kTokens; ++m) {
        const Dwords x = V::broadcast_dword(&input[m]->codes[kPart * kVectors + vector]);
        for (int b = 0; b < 2; ++b) {
          const Dwords product = V::multiply_bytes(w[b], x);
          words[b][m] = v == 0 ? product : V::add_words(words[b][m], product);
        }
      }
    }
#pragma GCC unroll 6
    for (int m = 0; m < kTokens; ++m)
      for (int b = 0; b < 2; ++b) {
        const Dwords pairs = chunk.nibble == 0 ? V::add_pairs(words[b][m])
                                               : V::multiply_words(words[b][m], V::set_words(1 << 4));
        sum[b][m] = V::add_dwords(sum[b][m], pairs);
      }
  }
};

/// What is asked for ahead of a walk: a panel, for which the tiles of this one leave the time, or with one
/// token as much as other kernels ask for (multiply.h).
template <int kPanelBytes>
[[gnu::always_inline]] inline int bytes_ahead(const Multiplication& a) {
  constexpr int kAhead = 8192;
  return a.tokens == 1 ? kAhead : kPanelBytes;
}

/// 4-bit floats; D a decoder of decode.h.
template <class V, class D>
struct Int8Fp4Product {
  using Digits = DigitProduct<V, D>;
  static constexpr int kGroup = Digits::kGroup;
  /// e2m1 codes are twice the value and 12.
  using Tiles = Int8Tiles<V, Int8Shape{.group = kGroup, .most = 2 * kE2m1Zero, .farthest = kE2m1Zero}>;

  static void run(const Multiplication& a) {
    const int ahead = bytes_ahead<Tiles::kPanelGroups * Digits::kGroupBytes>(a);
    for (int pair = 0; pair < a.pairs; ++pair) {
      Tiles::pair(
          a, pair,
          [&](int first, int count, typename Tiles::PanelGroup* panel) {
            const std::byte* group =
                Digits::weights(a, pair) + first * static_cast<std::size_t>(Digits::kGroupBytes);
            for (int g = 0; g < count; ++g, group += Digits::kGroupBytes) {
              for (int line = 0; line < Digits::kGroupBytes; line += 64) V::prefetch(group + ahead + line);
              decode(group, panel[g]);
            }
          },
          a.groups);
      for (int m = 0; m < a.tokens; ++m)
        for (int b = 0; b < 2; ++b) {
          float* at = Tiles::out(a, b, pair, m);
          V::store(at, Digits::finish(a, pair, b, V::load(at)));
        }
    }
  }

  [[gnu::always_inline]] static inline void decode(const std::byte* group, typename Tiles::PanelGroup& to) {
    for (int b = 0; b < 2; ++b) {
#pragma GCC unroll 8
      for (int v = 0; v < Tiles::kVectors; ++v) {
        const std::byte* line = group + b * Digits::kBlockBytes + v / 2 * Digits::kLineBytes;
        Tiles::store_codes(to, v, b, Digits::codes(line, v % 2));
      }
      V::store_words(to.zeros[b], V::set_words(-kE2m1Zero));
      // Half of a scale is exact, of the smallest of e8m0, too, which is subnormal.
      const std::byte* scales = group + b * Digits::kBlockBytes + Digits::kCodeBytes;
      V::store(to.scales[b], V::mul(D::scale(scales), V::set(0.5f)));
    }
  }
};

template <class V, int kBits, int kPart, bool kMinimums = false>
struct Int8IntegerProduct {
  using Product = IntegerProduct<V, kBits, kPart, kMinimums>;
  using Walk = typename Product::Walk;
  using Dwords = typename V::Dwords;
  using Tiles = Int8Tiles<V, Int8Shape{.group = kPart, .most = (1 << kBits) - 1, .minimums = kMinimums}>;
  static constexpr int kParts = Product::kParts;

  static void run(const Multiplication& a) {
    const int ahead = bytes_ahead<8 * Product::kStepBytes>(a);
    for (int pair = 0; pair < a.pairs; ++pair) {
      Walk walk(a, pair);
      Tiles::pair(
          a, pair,
          [&](int, int count, typename Tiles::PanelGroup* panel) {  // the walk is there already
            for (int g = 0; g < count; g += kParts, ++walk) {
              for (int line = 0; line < Product::kStepBytes; line += 64)
                V::prefetch(walk.place.at + ahead + line);
              decode(walk, panel + g);
            }
          },
          a.groups * kParts);
    }
  }

  [[gnu::always_inline]] static inline void decode(const Walk& walk, typename Tiles::PanelGroup* to) {
    for (int b = 0; b < 2; ++b) {
      for (int p = 0; p < kParts; ++p) {
        V::store(to[p].scales[b], walk.head.scale[p][b]);
        V::store_words(to[p].zeros[b], walk.head.both_zero(p, b));
      }
      if constexpr (kMinimums) V::store(to[0].minimums[b], walk.head.minimum[b]);
      decode_vectors<0>(walk, b, to);
    }
  }

  template <int kVector>
  [[gnu::always_inline]] static inline void decode_vectors(const Walk& walk, int b,
                                                           typename Tiles::PanelGroup* to) {
    Tiles::store_codes(to[kVector / Tiles::kVectors], kVector % Tiles::kVectors, b,
                       Product::Codes::template vector<kVector>(walk.block(b)));
    if constexpr (kVector + 1 < 8) decode_vectors<kVector + 1>(walk, b, to);
  }
};

template <class V, int kBits, int kPart, bool kMinimums = false>
constexpr IntegerKernels::OfPart int8_integer_part() {
  const Multiply run = Int8IntegerProduct<V, kBits, kPart, kMinimums>::run;
  return {.multiply = IntegerProduct<V, kBits, kPart, kMinimums>::floats,
          .digits = {.one = run, .several = run}};
}

template <class V, int kBits>
constexpr IntegerKernels int8_integer_kernels() {
  IntegerKernels kernels{.wholes = int8_integer_part<V, kBits, 32>(),
                         .halves = int8_integer_part<V, kBits, 16>()};
  if constexpr (kBits == 4 || kBits == 5) kernels.minimums = int8_integer_part<V, kBits, 32, true>();
  return kernels;
}

template <class V, class D>
constexpr DigitKernels int8_fp4_kernels() {
  return {.one = Int8Fp4Product<V, D>::run, .several = Int8Fp4Product<V, D>::run};
}

/// The formats whose codes are small integers, for one vector; Fp4 decodes codes of 4 bits for rows that have
/// no int8 (to_int8.h).
template <class V, class Fp4>
constexpr KernelTable make_int8_table() {
  using Mxfp4 = Decoder<kMxfp4, Fp4, E8m0Scale<V>>;
  using Nvfp4 = Decoder<kNvfp4, Fp4, E4m3Scale<V>>;
  KernelTable table{};
  table.lanes = V::kLanes;
  table.mxfp4 = Product<V, Mxfp4>::run;
  table.nvfp4 = Product<V, Nvfp4>::run;
  table.mxfp4_digits = int8_fp4_kernels<V, Mxfp4>();
  table.nvfp4_digits = int8_fp4_kernels<V, Nvfp4>();
  table.int2 = int8_integer_kernels<V, 2>();
  table.int3 = int8_integer_kernels<V, 3>();
  table.int4 = int8_integer_kernels<V, 4>();
  table.int5 = int8_integer_kernels<V, 5>();
  table.int6 = int8_integer_kernels<V, 6>();
  table.int7 = int8_integer_kernels<V, 7>();
  table.int8 = int8_integer_kernels<V, 8>();
  table.rounds_to_int8 = true;
  return table;
}

}  // namespace
}  // namespace sluice::cpu
