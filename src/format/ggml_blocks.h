// SPDX-License-Identifier: Apache-2.0
// The integer formats of GGUF, decoded in place. A row is blocks one after the other; a block holds scales
// and codes of its columns, and
//
//   value = (code - zero) * scale - minimum
//
// where scale and minimum belong to a group of 16 or 32 columns and are products of the block's binary16
// number and a small integer. Such products are exact in float32, and a value is exact in double: as float32
// it has been rounded once. docs/formats/gguf.md has the bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "format/geometry.h"

namespace sluice::format {

inline constexpr int kMostBlockCols = 256;

/// What a block holds. Entries past its columns and groups are not used.
struct BlockValues {
  std::array<std::uint8_t, kMostBlockCols> codes;
  std::array<float, kMostBlockCols / 16> scales;
  std::array<float, kMostBlockCols / 16> minimums;
};

/// Where a block has binary16 numbers, in bytes from its start; -1: no second one.
struct BlockNumbers {
  int scale = 0, minimum = -1;
};

/// The part that does not depend on the block. `Block` has `columns` (of a block), `group`, `zero`,
/// `has_minimums`, `numbers`, and unpack().
template <class Block>
struct GgmlBlocks {
  static constexpr bool accepts_scales(DType) { return false; }
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, float* out);
  static void decode_row(const WeightMatrix& matrix, std::int64_t row, double* out);
  static Encoded encode(const float* values, std::int64_t rows, std::int64_t cols);
};

/// 18 bytes for 32 columns: scale, then 16 bytes; low nibbles are columns 0 to 15, high ones 16 to 31.
struct Q4_0 : GgmlBlocks<Q4_0> {
  static constexpr std::string_view name = "q4_0";
  static constexpr Geometry geometry{
      .code_bits = 4, .group_rows = 1, .group_cols = 32, .block_cols = 32, .block_bytes = 18};
  static constexpr int zero = 8;
  static constexpr BlockNumbers numbers{};
  static void unpack(const std::byte* block, BlockValues& out);
};

/// 34 bytes for 32 columns: scale, then an int8 a column, which is code - 128.
struct Q8_0 : GgmlBlocks<Q8_0> {
  static constexpr std::string_view name = "q8_0";
  static constexpr Geometry geometry{
      .code_bits = 8, .group_rows = 1, .group_cols = 32, .block_cols = 32, .block_bytes = 34};
  static constexpr int zero = 128;
  static constexpr BlockNumbers numbers{};
  static void unpack(const std::byte* block, BlockValues& out);
};

/// 144 bytes for 256 columns, groups of 32 with a minimum: two numbers, eight pairs of 6 bits, nibbles.
struct Q4K : GgmlBlocks<Q4K> {
  static constexpr std::string_view name = "q4_k";
  static constexpr Geometry geometry{
      .code_bits = 4, .group_rows = 1, .group_cols = 32, .block_cols = 256, .block_bytes = 144};
  static constexpr int zero = 0;
  static constexpr BlockNumbers numbers{.scale = 0, .minimum = 2};
  static void unpack(const std::byte* block, BlockValues& out);
};

/// 176 bytes: Q4_K with 32 bytes of fifth bits before the nibbles.
struct Q5K : GgmlBlocks<Q5K> {
  static constexpr std::string_view name = "q5_k";
  static constexpr Geometry geometry{
      .code_bits = 5, .group_rows = 1, .group_cols = 32, .block_cols = 256, .block_bytes = 176};
  static constexpr int zero = 0;
  static constexpr BlockNumbers numbers{.scale = 0, .minimum = 2};
  static void unpack(const std::byte* block, BlockValues& out);
};

/// 210 bytes for 256 columns, groups of 16: low nibbles, high pairs of bits, an int8 a group, the scale.
struct Q6K : GgmlBlocks<Q6K> {
  static constexpr std::string_view name = "q6_k";
  static constexpr Geometry geometry{
      .code_bits = 6, .group_rows = 1, .group_cols = 16, .block_cols = 256, .block_bytes = 210};
  static constexpr int zero = 32;
  static constexpr BlockNumbers numbers{.scale = 208};
  static void unpack(const std::byte* block, BlockValues& out);
};

/// The zero of every code of a block format.
int block_zero(Format format);
/// True when groups of the format have minimums.
bool has_minimums(Format format);
/// Where a block has its binary16 numbers.
BlockNumbers block_numbers(Format format);
/// Reads one block of a matrix in a block format.
void unpack_block(Format format, const std::byte* block, BlockValues& out);

}  // namespace sluice::format
