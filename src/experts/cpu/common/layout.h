// SPDX-License-Identifier: Apache-2.0
// How packed weights lie in memory: the contract between the packer (common/pack_pairs.cpp) and the kernels
// (common/multiply.h). Everything here is a number; both sides compute their addresses from it.
//
// Rows are packed in blocks of `lanes` (a vector of float32): lane = row, so a kernel never sums across a
// vector. Two blocks make a pair, gate block b with up block b, or two neighbouring blocks of one matrix. A
// pair is stored group by group along the columns, so that one walk over contiguous memory feeds both blocks:
//
//   pair = { group 0: codes 0, scales 0, codes 1, scales 1 } { group 1: ... } ... { factors 0, factors 1 }
//   { mark } padding, which is zeros: the same weights are the same bytes
//
// `factors` are one float32 a row, multiplied at the end: the coarse scale of formats that have one, and NaN
// for a row that contains a NaN code or scale, whose every product is NaN whatever the input (so that no
// decoder has to look for NaN). `mark` is an int32, not 0 where a code of the pair is a bf16 that
// is subnormal, which instructions for bf16 take for 0, or no number, whose product with a term of 0 is NaN.
// Rows are padded with zero codes, columns with zero codes up to a whole group.
//
// This header is compiled for every instruction set: constants only, nothing that could be emitted as a
// function.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cpu {

/// Columns of one chain of multiply-adds. A row of a format without digits (digits.h) is summed 16 columns at
/// a time in ascending order, and the sums are added up in ascending order, for every format, tile, thread
/// count and instruction set: hence the same bits.
inline constexpr int kChain = 16;

/// How the codes of a group lie. k counts the columns of a group, r the rows of a block.
enum class Codes : std::uint8_t {
  fp4,   // dword (k / 8) * lanes + r holds the columns k to k + 7 of row r, the first in the low nibble
  e4m3,  // byte k * lanes + r
  f16,   // half k * lanes + r
  bf16,  // dword (k / 2) * lanes + r holds the columns k (low half) and k + 1
  f32,   // float k * lanes + r
};

/// What scales a group of a block has.
enum class Scales : std::uint8_t {
  none,
  byte_each_row,     // `lanes` bytes, e8m0 or e4m3
  float_each_block,  // one float32: the block lies within one scale tile
};

struct Layout {
  Codes codes = Codes::f32;
  int code_bits = 0;
  int group = kChain;  // columns, a multiple of kChain
  Scales scales = Scales::none;
  bool factors = false;
  bool mark = false;  // in the place of factors

  constexpr int code_bytes(int lanes) const { return lanes * group * code_bits / 8; }
  constexpr int scale_bytes(int lanes) const {
    return scales == Scales::none ? 0 : scales == Scales::byte_each_row ? lanes : 4;
  }
  constexpr int block_bytes(int lanes) const { return code_bytes(lanes) + scale_bytes(lanes); }
  constexpr int group_bytes(int lanes) const { return 2 * block_bytes(lanes); }
  constexpr int groups(int columns) const { return (columns + group - 1) / group; }
  constexpr std::size_t factors_offset(int lanes, int columns) const {
    return static_cast<std::size_t>(groups(columns)) * group_bytes(lanes);
  }
  /// Of a pair, before its padding.
  constexpr std::size_t used_bytes(int lanes, int columns) const {
    return factors_offset(lanes, columns) + (factors ? 2 * lanes * sizeof(float) : 0) +
           (mark ? sizeof(std::int32_t) : 0);
  }
  /// Rounded up to whole cache lines.
  constexpr std::size_t pair_bytes(int lanes, int columns) const {
    return (used_bytes(lanes, columns) + 63) / 64 * 64;
  }
};

inline constexpr Layout kF32{.codes = Codes::f32, .code_bits = 32, .group = kChain};
inline constexpr Layout kF16{.codes = Codes::f16, .code_bits = 16, .group = kChain};
inline constexpr Layout kBf16{.codes = Codes::bf16, .code_bits = 16, .group = kChain, .mark = true};
inline constexpr Layout kMxfp4{
    .codes = Codes::fp4, .code_bits = 4, .group = 32, .scales = Scales::byte_each_row, .factors = true};
inline constexpr Layout kNvfp4{
    .codes = Codes::fp4, .code_bits = 4, .group = 16, .scales = Scales::byte_each_row, .factors = true};
inline constexpr Layout kMxfp8{
    .codes = Codes::e4m3, .code_bits = 8, .group = 32, .scales = Scales::byte_each_row, .factors = true};
inline constexpr Layout kFp8Block128{
    .codes = Codes::e4m3, .code_bits = 8, .group = 128, .scales = Scales::float_each_block, .factors = true};
/// One scale a row, or one for the matrix: the factors.
inline constexpr Layout kFp8Rows{.codes = Codes::e4m3, .code_bits = 8, .group = kChain, .factors = true};

// ---- integers
//
// Their groups and the type of their scales are the matrix's own, so their layout is made when a spec is
// known:
//
//   pair = { record 0 } { record 1 } ... padding        record = { scales, zero points, steps }
//   scales, zero points: [parts of a record][2 blocks][lanes]         step = { codes 0, codes 1 }
//
// A part is what one scale covers within a step of 32 columns (kDigitColumns): all of it, or a half. With
// whole steps a record is a group, has one part and as many steps as the group; with halves a record is a
// step and has two. Codes are cut into planes of 8, 4, 2 and 1 bits, so that no bit is wasted: 3 bits are 2
// and 1. A plane of w bits takes w lines, each a dword a row, and byte j of line i holds, from its lowest
// bits upwards, the vectors i * 8 / w and following; byte j of vector v is the column
// 8 (v / 2) + v % 2 + 2 j, the order of digits.h.

//
// GGUF's K quants have scales in two levels, a binary16 number for 256 columns times a byte for each group.
// That is kept (8 bits a byte instead of 6): a block of 8 steps begins with the numbers, and the scales of
// its records are bytes, followed by those of the minimums where the format has such (w = scale * code -
// minimum; the zero point is then 0):
//
//   pair = { block 0 } { block 1 } ...     block = { numbers, minimums' numbers, 8 or 16 records }
//   numbers: f16 [2 blocks of rows][lanes]

/// How scales are kept. Those of a stream that has both kinds of 16 bits are kept as f32.
enum class ScaleType : std::uint8_t { f16, bf16, f32, product };

/// Steps that share the number of a product.
inline constexpr int kNumberSteps = 8;

/// Bits `shift` and following of the codes, in the lines from `line` on.
struct Plane {
  int bits = 0, shift = 0, line = 0;
};

struct Planes {
  Plane plane[3] = {};
  int count = 0;
};

/// 8 bits are one plane, others the powers of two that they are the sum of, widest first.
constexpr Planes planes_of(int bits) {
  Planes planes;
  for (int width = 8, done = 0; width > 0; width /= 2)
    if ((bits & width) != 0) {
      planes.plane[planes.count++] = {width, done, done};
      done += width;
    }
  return planes;
}

/// Column of a step in byte j of vector v.
constexpr int column_of(int vector, int byte) { return vector / 2 * 8 + vector % 2 + 2 * byte; }

struct IntegerLayout {
  int bits = 0;         // 0: no integers
  int part = 32;        // columns: 32 or 16
  int group_steps = 1;  // of a record
  ScaleType scales = ScaleType::f16;
  bool zeros = false;
  bool minimums = false;  // of products
  int columns = 0;        // of a row as it is packed: in the order of the groups, those padded to whole parts
  bool gathers = false;   // not the order of the matrix: activations have to follow

  friend bool operator==(const IntegerLayout&, const IntegerLayout&) = default;

  constexpr int steps() const { return (columns + 31) / 32; }
  constexpr int parts() const { return 32 / part; }
  constexpr int scale_bytes(int lanes) const {
    return 2 * parts() * lanes * (scales == ScaleType::f32 ? 4 : scales == ScaleType::product ? 1 : 2);
  }
  /// Of the zero points or the minimums, where there are any.
  constexpr int byte_bytes(int lanes) const { return zeros || minimums ? 2 * parts() * lanes : 0; }
  constexpr int head_bytes(int lanes) const { return scale_bytes(lanes) + byte_bytes(lanes); }
  constexpr int number_bytes(int lanes) const {
    return scales == ScaleType::product ? 2 * lanes * (minimums ? 4 : 2) : 0;
  }
  constexpr int number_blocks() const { return (steps() + kNumberSteps - 1) / kNumberSteps; }
  constexpr int step_bytes(int lanes) const { return 2 * lanes * 4 * bits; }
  constexpr int records() const { return (steps() + group_steps - 1) / group_steps; }
  /// Fixed point rounds to a share of the largest of 32 inputs, so a row whose weights are nearly all zero
  /// may see inputs that have lost more than float32 sums would lose of them. A quantiser leaves a weight
  /// other than zero in every group, and 2 bits may leave no other: with few groups a row (10 roundings of
  /// 128 columns with one scale, where 4 are allowed) such a matrix is multiplied in float32.
  constexpr bool has_digits() const { return bits > 2 || records() * parts() >= 8; }
  /// Of a pair, before its padding.
  constexpr std::size_t used_bytes(int lanes) const {
    return static_cast<std::size_t>(records()) * head_bytes(lanes) +
           static_cast<std::size_t>(steps()) * step_bytes(lanes) +
           static_cast<std::size_t>(number_blocks()) * number_bytes(lanes);
  }
  /// Rounded up to whole cache lines.
  constexpr std::size_t pair_bytes(int lanes) const { return (used_bytes(lanes) + 63) / 64 * 64; }
};

}  // namespace sluice::cpu
