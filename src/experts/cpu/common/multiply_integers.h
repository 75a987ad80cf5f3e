// SPDX-License-Identifier: Apache-2.0
// The product of integer codes and fixed-point inputs (digits.h), once for all vector widths, widths of codes
// and groups. Only the kernels.cpp of a backend includes this; everything is in an anonymous namespace
// (kernel.h says why).
//
// For every part, the columns of a step that one scale covers:  sum of (code - zero) * X, exactly;  one
// rounding to float32;  times the step (exact);  acc = fma(scale, that, acc). Where a minimum is subtracted
// from a part's weights (w = scale * code - minimum), acc = fma(-minimum, sum of X, acc) follows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "experts/cpu/common/byte_panel.h"
#include "experts/cpu/common/digit_tile.h"
#include "experts/cpu/common/digits.h"
#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/layout.h"

namespace sluice::cpu {
namespace {

/// Reads codes of kBits: vector v of a step's block, four columns of every row in the bytes of its dword.
template <class V, int kBits>
struct IntegerCodes {
  using Dwords = typename V::Dwords;
  static constexpr Planes kPlanes = planes_of(kBits);
  static constexpr int kLineBytes = 4 * V::kLanes;
  static constexpr int kBlockBytes = kBits * kLineBytes;

  template <int kVector>
  [[gnu::always_inline]] static inline Dwords vector(const std::byte* block) {
    if constexpr (kBits == 8) {
      return V::load_dwords(block + kVector * kLineBytes);
    } else {
      Dwords codes = plane<kVector, 0>(block);
      if constexpr (kPlanes.count > 1) codes = V::or_bits(codes, plane<kVector, 1>(block));
      if constexpr (kPlanes.count > 2) codes = V::or_bits(codes, plane<kVector, 2>(block));
      return codes;
    }
  }

 private:
  /// The bits of one plane, in their place within the code.
  template <int kVector, int kPlane>
  [[gnu::always_inline]] static inline Dwords plane(const std::byte* block) {
    constexpr Plane kOf = kPlanes.plane[kPlane];
    constexpr int kAline = 8 / kOf.bits;
    constexpr int kDown = kVector % kAline * kOf.bits - kOf.shift;
    constexpr std::int32_t kMask = ((1 << kOf.bits) - 1) << kOf.shift;
    const Dwords line = V::load_dwords(block + (kOf.line + kVector / kAline) * kLineBytes);
    const Dwords mask = V::set_dword(0x01010101 * kMask);
    if constexpr (kDown > 0) return V::and_bits(V::template shift_right<kDown>(line), mask);
    if constexpr (kDown < 0) return V::and_bits(V::template shift_left<-kDown>(line), mask);
    return V::and_bits(line, mask);
  }
};

/// Where a record's head is, and the numbers that its scales are products with, if they are.
struct HeadPlace {
  const std::byte *at, *numbers;
};

/// What stands before the steps of a record.
template <class V, int kParts, bool kMinimums>
struct RecordHead {
  using Reg = typename V::Reg;
  using Dwords = typename V::Dwords;
  Reg scale[kParts][2];
  Dwords zero[kParts][2];  // minus the zero points, as dwords
  Reg minimum[2];          // minus the minimums

  [[gnu::always_inline]] RecordHead(const IntegerRecords& records, std::int32_t middle, HeadPlace place) {
    const std::byte* at = place.at;
    if (records.scales == ScaleType::product) {
      for (int p = 0; p < kParts; ++p)
        for (int b = 0; b < 2; ++b, at += V::kLanes)
          scale[p][b] = product(place.numbers, b, signed_bytes(at));
    } else {
      const int wide = records.scales == ScaleType::f32 ? 4 : 2;
      for (int p = 0; p < kParts; ++p)
        for (int b = 0; b < 2; ++b, at += wide * V::kLanes) scale[p][b] = scale_at(records.scales, at);
    }
    for (int p = 0; p < kParts; ++p)
      for (int b = 0; b < 2; ++b)
        zero[p][b] = !kMinimums && records.zeros ? V::minus(V::load_bytes(at + (2 * p + b) * V::kLanes))
                                                 : V::set_dword(kMinimums ? 0 : -middle);
    for (int b = 0; b < 2; ++b)
      minimum[b] =
          kMinimums ? product(place.numbers, 2 + b, V::minus(V::load_bytes(at + b * V::kLanes))) : V::zero();
  }

  static Dwords signed_bytes(const std::byte* at) {
    return V::template shift_right_signed<24>(V::template shift_left<24>(V::load_bytes(at)));
  }
  /// Exact: 11 bits times 8.
  static Reg product(const std::byte* numbers, int index, Dwords bytes) {
    return V::mul(V::load_f16(numbers + 2 * index * V::kLanes), V::to_float(bytes));
  }
  static Reg scale_at(ScaleType type, const std::byte* at) {
    if (type == ScaleType::f16) return V::load_f16(at);
    if (type == ScaleType::bf16) return V::load_bf16(at);
    return V::load(reinterpret_cast<const float*>(at));
  }
  /// The same in the low, the high or both words of each dword.
  [[gnu::always_inline]] Dwords low_zero(int p, int b) const {
    return V::and_bits(zero[p][b], V::set_dword(0xFFFF));
  }
  [[gnu::always_inline]] Dwords high_zero(int p, int b) const {
    return V::template shift_left<16>(zero[p][b]);
  }
  [[gnu::always_inline]] Dwords both_zero(int p, int b) const {
    return V::or_bits(low_zero(p, b), high_zero(p, b));
  }
};

template <class V, int kBits, int kPart, bool kMinimums = false>
struct IntegerProduct {
  using Reg = typename V::Reg;
  using Dwords = typename V::Dwords;
  using Codes = IntegerCodes<V, kBits>;
  using Tiles = DigitTiles<V, kPart, 1, kMinimums>;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kParts = kDigitColumns / kPart;
  using Head = RecordHead<V, kParts, kMinimums>;
  static constexpr int kBlockBytes = Codes::kBlockBytes;
  static constexpr int kStepBytes = 2 * kBlockBytes;
  static constexpr int kVectors = kPart / 4;  // of a part
  static constexpr std::int32_t kMiddle = 1 << (kBits - 1);
  /// Bytes that are asked for ahead of a walk over cold weights (multiply.h).
  static constexpr int kAhead = 8192;

  static const std::byte* weights(const Multiplication& a, int pair) {
    return a.weights + pair * a.pair_bytes;
  }
  /// Goes past the numbers that stand before step `step`, if any do.
  [[gnu::always_inline]] static inline void pass_numbers(const Multiplication& a, int step,
                                                         HeadPlace& place) {
    if (a.integers.number_bytes == 0 || step % kNumberSteps != 0) return;
    place = {place.at + a.integers.number_bytes, place.at};
  }

  // ---- where codes come from

  /// A step as it is packed.
  struct Packed {
    const std::byte* step;
    const Head& head;
    template <int kVector>
    [[gnu::always_inline]] Dwords codes(int b) const {
      return Codes::template vector<kVector>(step + b * kBlockBytes);
    }
    [[gnu::always_inline]] Reg scale(int part, int b) const { return head.scale[part][b]; }
    [[gnu::always_inline]] Reg minimum(int b) const { return head.minimum[b]; }
    /// Minus the zero points in the words that digits' sums have of the part's columns.
    [[gnu::always_inline]] Dwords zero(int part, int b) const {
      return kParts == 1 ? head.both_zero(0, b) : part == 0 ? head.low_zero(0, b) : head.high_zero(part, b);
    }
  };

  /// A part of a panel in bytes.
  struct alignas(64) Group : ByteGroup<V, kPart>, PanelMinimums<V, kMinimums> {
    std::int16_t zeros[2][2 * kLanes];
  };
  using Panels = BytePanels<V, Group, kPart>;
  struct InPanel {
    const Group* parts;
    template <int kVector>
    [[gnu::always_inline]] Dwords codes(int b) const {
      return V::load_words(parts[kVector / kVectors].codes[kVector % kVectors][b]);
    }
    [[gnu::always_inline]] Reg scale(int part, int b) const { return V::load(parts[part].scales[b]); }
    [[gnu::always_inline]] Reg minimum(int b) const { return V::load(parts[0].minimums[b]); }
    [[gnu::always_inline]] Dwords zero(int part, int b) const { return V::load_words(parts[part].zeros[b]); }
  };

  // ---- one token

  static void one(const Multiplication& a) {
    const int head_bytes = a.integers.head_bytes;
    for (int pair = 0; pair < a.pairs; ++pair) {
      HeadPlace place{weights(a, pair), nullptr};
      const auto* input = static_cast<const ByteDigits*>(a.digits);
      Reg acc[2] = {V::zero(), V::zero()};
      for (int left = a.groups; left > 0; left -= a.integers.group_steps) {
        pass_numbers(a, a.groups - left, place);
        for (int line = 0; line < head_bytes; line += 64) V::prefetch(place.at + kAhead + line);
        const Head head(a.integers, kMiddle, place);
        const std::byte* at = place.at + head_bytes;
        const int steps = left < a.integers.group_steps ? left : a.integers.group_steps;
        for (int s = 0; s < steps; ++s, at += kStepBytes, ++input) {
          for (int line = 0; line < kStepBytes; line += 64) V::prefetch(at + kAhead + line);
          add_step(Packed{at, head}, *input, acc);
        }
        place.at = at;
      }
      for (int b = 0; b < 2; ++b) V::store(a.out[b] + pair * a.out_step, acc[b]);
    }
  }

  /// The branch takes the same way for every row of weights.
  template <class From>
  [[gnu::always_inline]] static inline void add_step(const From& from, const ByteDigits& input,
                                                     Reg (&acc)[2]) {
    if (input.used == 2)
      parts<2>(from, input, acc);
    else
      parts<3>(from, input, acc);
  }

  template <int kUsed, class From>
  [[gnu::always_inline]] static inline void parts(const From& from, const ByteDigits& input, Reg (&acc)[2]) {
    part<0, kUsed>(from, input, acc);
    if constexpr (kParts == 2) part<1, kUsed>(from, input, acc);
  }

  /// Sums of codes times digits.
  template <int kUsed>
  struct Sums {
    Dwords of[2][kUsed];
  };

  template <int kIndex, int kUsed, class From>
  [[gnu::always_inline]] static inline void part(const From& from, const ByteDigits& input, Reg (&acc)[2]) {
    Sums<kUsed> sum;
    for (int b = 0; b < 2; ++b) start<kIndex>(from, input, b, sum.of[b]);
    if constexpr (AddsProducts<V>)
      at_once<kIndex * kVectors>(from, input, sum);
    else
      chunks<kIndex * kVectors>(from, input, sum);
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b) {
      acc[b] = V::fma(from.scale(kIndex, b), Tiles::value(rounded(sum.of[b]), &input.step), acc[b]);
      if constexpr (kMinimums) acc[b] = V::fma(from.minimum(b), V::broadcast(&input.sum), acc[b]);
    }
  }

  /// What the zero points contribute: nothing where there are minimums instead.
  template <int kIndex, int kUsed, class From>
  [[gnu::always_inline]] static inline void start(const From& from, const ByteDigits& input, int b,
                                                  Dwords (&sum)[kUsed]) {
    if constexpr (kMinimums) {
#pragma GCC unroll 3
      for (Dwords& digit : sum) digit = V::set_dword(0);
    } else {
      const Dwords zero = from.zero(kIndex, b);
#pragma GCC unroll 3
      for (int d = 0; d < kUsed; ++d) sum[d] = V::multiply_words(zero, V::broadcast_dword(&input.sums[d]));
    }
  }

  /// The vectors from kVector to the end of the part. Four products of a byte and a digit are below 2^17.
  template <int kVector, int kUsed, class From>
  [[gnu::always_inline]] static inline void at_once(const From& from, const ByteDigits& input,
                                                    Sums<kUsed>& sum) {
    const Dwords w[2] = {from.template codes<kVector>(0), from.template codes<kVector>(1)};
#pragma GCC unroll 3
    for (int d = 0; d < kUsed; ++d) {
      const Dwords x = V::broadcast_dword(&input.digits[kVector][d]);
      for (int b = 0; b < 2; ++b) sum.of[b][d] = V::dot_bytes(sum.of[b][d], w[b], x);
    }
    if constexpr ((kVector + 1) % kVectors != 0) at_once<kVector + 1>(from, input, sum);
  }

  /// Vectors whose products fit a word together: each adds two of at most 128 times the largest code. Bytes
  /// do not fit at all, and are taken as two nibbles.
  static constexpr int kProductCode = kBits == 8 ? 15 : (1 << kBits) - 1;
  static constexpr int kFit = 32767 / (2 * 128 * kProductCode);
  static constexpr int kChunk = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  static constexpr int kOfChunk = kChunk < kVectors ? kChunk : kVectors;

  /// The vectors from kFirst to the end of the part.
  template <int kFirst, int kUsed, class From>
  [[gnu::always_inline]] static inline void chunks(const From& from, const ByteDigits& input,
                                                   Sums<kUsed>& sum) {
    chunk<kFirst, 0>(from, input, sum);
    if constexpr (kBits == 8) chunk<kFirst, 4>(from, input, sum);
    if constexpr ((kFirst + kOfChunk) % kVectors != 0) chunks<kFirst + kOfChunk>(from, input, sum);
  }

  /// Products of some vectors; of bytes those of the nibble at kShift.
  template <int kFirst, int kShift, int kUsed, class From>
  [[gnu::always_inline]] static inline void chunk(const From& from, const ByteDigits& input,
                                                  Sums<kUsed>& sum) {
    Dwords words[2][kUsed];
    add_vectors<kFirst, kShift, 0>(from, input, words);
    for (int b = 0; b < 2; ++b)
#pragma GCC unroll 3
      for (int d = 0; d < kUsed; ++d) {
        const Dwords pairs = kShift == 0 ? V::add_pairs(words[b][d])
                                         : V::multiply_words(words[b][d], V::set_words(1 << kShift));
        sum.of[b][d] = V::add_dwords(sum.of[b][d], pairs);
      }
  }

  template <int kFirst, int kShift, int kDone, int kUsed, class From>
  [[gnu::always_inline]] static inline void add_vectors(const From& from, const ByteDigits& input,
                                                        Dwords (&words)[2][kUsed]) {
    constexpr int kVector = kFirst + kDone;
    Dwords w[2];
    for (int b = 0; b < 2; ++b) {
      w[b] = from.template codes<kVector>(b);
      if constexpr (kBits == 8) w[b] = kShift == 0 ? V::low_nibbles(w[b]) : V::high_nibbles(w[b]);
    }
#pragma GCC unroll 3
    for (int d = 0; d < kUsed; ++d) {
      const Dwords x = V::broadcast_dword(&input.digits[kVector][d]);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        const Dwords product = V::multiply_bytes(w[b], x);
        words[b][d] = kDone == 0 ? product : V::add_words(words[b][d], product);
      }
    }
    if constexpr (kDone + 1 < kOfChunk) add_vectors<kFirst, kShift, kDone + 1>(from, input, words);
  }

  /// The sums as one number, rounded once.
  template <int kUsed>
  [[gnu::always_inline]] static inline Reg rounded(const Dwords (&sum)[kUsed]) {
    // At most 32 * 255 * 128 (1 + 2^8), below 2^29; of 4 bits less than 2^24 and exact as a float.
    const Dwords two = V::add_dwords(V::template shift_left<8>(sum[1]), sum[0]);
    if constexpr (kUsed == 2) return V::to_float(two);
    if constexpr (kUsed == 3 && kBits <= 4)
      return V::fma(V::to_float(sum[2]), V::set(0x1p16f), V::to_float(two));
    if constexpr (kUsed == 3 && kBits > 4) {
      // As two numbers below 2^24: high * 2^12 + low.
      const Dwords high =
          V::add_dwords(V::template shift_left<4>(sum[2]), V::template shift_right_signed<12>(two));
      const Dwords low = V::and_bits(two, V::set_dword(0xFFF));
      return V::fma(V::to_float(high), V::set(0x1p12f), V::to_float(low));
    }
  }

  // ---- several tokens

  /// Bytes that do not fit a word together take more instructions than words do.
  static constexpr bool kWords = !AddsProducts<V> && kBits > 4;

  static void several(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair) {
      Walk walk(a, pair);
      if constexpr (kWords)
        Tiles::pair(a, pair, a.groups * kParts, [&](int, int count, typename Tiles::PanelGroup* panel) {
          for (int g = 0; g < count; g += kParts, ++walk) decode(walk, panel + g);
        });
      else
        Panels::pair(
            a, pair, a.groups * kParts,
            [&](int, int count, Group* panel) {
              for (int g = 0; g < count; g += kParts, ++walk) decode(walk, panel + g);
            },
            [](const Group* parts_of, int, const ByteDigits& input, Reg(&acc)[2])
                __attribute__((always_inline)) { add_step(InPanel{parts_of}, input, acc); });
    }
  }

  /// Goes from step to step, and over the heads between them.
  struct Walk {
    [[gnu::always_inline]] Walk(const Multiplication& of, int pair)
        : a(of), place(first_place(of, pair)), head(of.integers, kMiddle, place) {
      place.at += a.integers.head_bytes;
    }
    [[gnu::always_inline]] void operator++() {
      place.at += kStepBytes;
      if (++steps % a.integers.group_steps != 0 || steps == a.groups) return;
      pass_numbers(a, steps, place);
      head = Head(a.integers, kMiddle, place);
      place.at += a.integers.head_bytes;
    }
    [[gnu::always_inline]] const std::byte* block(int b) const { return place.at + b * kBlockBytes; }

    const Multiplication& a;
    HeadPlace place;
    Head head;
    int steps = 0;
  };

  [[gnu::always_inline]] static inline HeadPlace first_place(const Multiplication& a, int pair) {
    HeadPlace place{weights(a, pair), nullptr};
    pass_numbers(a, 0, place);
    return place;
  }

  /// `To` a group of either panel.
  template <class To>
  [[gnu::always_inline]] static inline void decode(const Walk& walk, To* to) {
    for (int line = 0; line < kStepBytes; line += 64) V::prefetch(walk.place.at + kAhead + line);
    const Packed from{walk.place.at, walk.head};
    for (int b = 0; b < 2; ++b) {
      for (int p = 0; p < kParts; ++p) {
        V::store(to[p].scales[b], from.scale(p, b));
        if constexpr (!kWords) V::store_words(to[p].zeros[b], from.zero(p, b));
      }
      if constexpr (kMinimums) V::store(to[0].minimums[b], from.minimum(b));
      decode_vectors<0>(walk, b, to);
    }
  }

  template <int kVector, class To>
  [[gnu::always_inline]] static inline void decode_vectors(const Walk& walk, int b, To* to) {
    constexpr int kIndex = kVector / kVectors, kWithin = kVector % kVectors;
    const Dwords w = Codes::template vector<kVector>(walk.block(b));
    if constexpr (!kWords) {
      V::store_words(to[kIndex].codes[kWithin][b], w);
    } else if constexpr (kMinimums) {
      V::store_words(to[kIndex].codes[2 * kWithin][b], V::even_bytes(w));
      V::store_words(to[kIndex].codes[2 * kWithin + 1][b], V::odd_bytes(w));
    } else {
      const Dwords zero = walk.head.both_zero(kIndex, b);
      V::store_words(to[kIndex].codes[2 * kWithin][b], V::add_words(V::even_bytes(w), zero));
      V::store_words(to[kIndex].codes[2 * kWithin + 1][b], V::add_words(V::odd_bytes(w), zero));
    }
    if constexpr (kVector + 1 < 8) decode_vectors<kVector + 1>(walk, b, to);
  }

  // ---- rows without digits: float32, and short rather than fast

  static void floats(const Multiplication& a) {
    for (int pair = 0; pair < a.pairs; ++pair)
      for (int m = 0; m < a.tokens; ++m) {
        Walk walk(a, pair);
        const float* input = a.input + m * a.input_stride;
        Reg acc[2] = {V::zero(), V::zero()};
        for (int s = 0; s < a.groups; ++s, ++walk, input += kDigitColumns)
          for (int b = 0; b < 2; ++b) {
            Reg sum[kParts];
            for (Reg& part : sum) part = V::zero();
            float_vectors<0>(walk, b, input, sum);
            for (int p = 0; p < kParts; ++p)
              acc[b] = kMinimums ? V::add(sum[p], acc[b]) : V::fma(walk.head.scale[p][b], sum[p], acc[b]);
          }
        for (int b = 0; b < 2; ++b) V::store(Tiles::out(a, b, pair, m), acc[b]);
      }
  }

  template <int kVector>
  [[gnu::always_inline]] static inline void float_vectors(const Walk& walk, int b, const float* input,
                                                          Reg (&sum)[kParts]) {
    constexpr int kIndex = kVector / kVectors;
    const Dwords w = Codes::template vector<kVector>(walk.block(b));
    const Dwords byte = V::set_dword(0xFF);
    const Dwords codes[4] = {V::and_bits(w, byte), V::and_bits(V::template shift_right<8>(w), byte),
                             V::and_bits(V::template shift_right<16>(w), byte),
                             V::template shift_right<24>(w)};
    constexpr int kColumn = column_of(kVector, 0);
    for (int j = 0; j < 4; ++j)
      sum[kIndex] = V::fma(float_value(walk.head, kIndex, b, codes[j]), V::broadcast(input + kColumn + 2 * j),
                           sum[kIndex]);
    if constexpr (kVector + 1 < 8) float_vectors<kVector + 1>(walk, b, input, sum);
  }

  /// A code less the zero point, which the scale follows once a part; or with minimums the weight, rounded
  /// once: what is left of a scaled code less the minimum may be far smaller than either.
  [[gnu::always_inline]] static inline Reg float_value(const Head& head, int part, int b, Dwords code) {
    if constexpr (kMinimums) return V::fma(V::to_float(code), head.scale[part][b], head.minimum[b]);
    return V::to_float(V::add_dwords(code, head.zero[part][b]));
  }
};

template <class V, int kBits, int kPart, bool kMinimums = false>
constexpr IntegerKernels::OfPart integer_part() {
  using Product = IntegerProduct<V, kBits, kPart, kMinimums>;
  return {
      .multiply = Product::floats,
      .digits = {.one = Product::one, .several = Product::several, .several_reads_words = Product::kWords}};
}

template <class V, int kBits>
constexpr IntegerKernels integer_kernels() {
  IntegerKernels kernels{.wholes = integer_part<V, kBits, 32>(), .halves = integer_part<V, kBits, 16>()};
  if constexpr (kBits == 4 || kBits == 5) kernels.minimums = integer_part<V, kBits, 32, true>();
  return kernels;
}

}  // namespace
}  // namespace sluice::cpu
