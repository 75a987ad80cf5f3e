// SPDX-License-Identifier: Apache-2.0
#include "format/ggml_blocks.h"

#include "core/bits.h"
#include "core/error.h"
#include "format/f16.h"
#include "format/formats.h"

namespace sluice::format {
namespace {

unsigned byte_at(const std::byte* block, int at) { return load<std::uint8_t>(block + at); }

float number_at(const std::byte* block, int at) { return f16_to_float(load<std::uint16_t>(block + at)); }

/// The eight pairs of 6 bits of Q4_K and Q5_K in 12 bytes. Pairs 0 to 3 have bytes of their own, whose top
/// bits are the top bits of pairs 4 to 7.
struct SixBits {
  unsigned scale, minimum;
};

SixBits six_bits(const std::byte* packed, int group) {
  if (group < 4) return {byte_at(packed, group) & 63u, byte_at(packed, group + 4) & 63u};
  const unsigned low = byte_at(packed, group + 4);
  return {(low & 15u) | byte_at(packed, group - 4) >> 6 << 4, low >> 4 | byte_at(packed, group) >> 6 << 4};
}

void unpack_six_bits(const std::byte* block, BlockValues& out) {
  const float scale = number_at(block, 0), minimum = number_at(block, 2);
  for (int group = 0; group < 8; ++group) {
    const SixBits pair = six_bits(block + 4, group);
    out.scales[static_cast<std::size_t>(group)] = scale * static_cast<float>(pair.scale);
    out.minimums[static_cast<std::size_t>(group)] = minimum * static_cast<float>(pair.minimum);
  }
}

/// Nibbles of Q4_K and Q5_K: 32 bytes are 64 columns, the low nibbles first.
void unpack_nibbles(const std::byte* nibbles, BlockValues& out) {
  for (int i = 0; i < 128; ++i) {
    const unsigned pair = byte_at(nibbles, i);
    const auto column = static_cast<std::size_t>(i / 32 * 64 + i % 32);
    out.codes[column] = static_cast<std::uint8_t>(pair & 15u);
    out.codes[column + 32] = static_cast<std::uint8_t>(pair >> 4);
  }
}

/// In double, where every step is exact; as float32 that is one rounding.
template <class Block, class Real>
void decode_blocks(const WeightMatrix& matrix, std::int64_t row, Real* out) {
  constexpr Geometry g = Block::geometry;
  constexpr bool kMinimums = Block::numbers.minimum >= 0;
  BlockValues values;
  const std::byte* block = matrix.codes + row * matrix.row_stride;
  for (std::int64_t first = 0; first < matrix.cols; first += g.block_cols, block += g.block_bytes) {
    Block::unpack(block, values);
    for (int c = 0; c < g.block_cols; ++c) {
      const auto group = static_cast<std::size_t>(c / g.group_cols);
      double value =
          (int{values.codes[static_cast<std::size_t>(c)]} - Block::zero) * double{values.scales[group]};
      if constexpr (kMinimums) value -= values.minimums[group];
      out[first + c] = static_cast<Real>(value);
    }
  }
}

/// Calls `f` for the block format of that name; anything else is a mistake of the caller.
template <class F>
auto visit_block(Format format, F f) {
  if (format == Formats::of<Q4_0>()) return f.template operator()<Q4_0>();
  if (format == Formats::of<Q8_0>()) return f.template operator()<Q8_0>();
  if (format == Formats::of<Q4K>()) return f.template operator()<Q4K>();
  if (format == Formats::of<Q5K>()) return f.template operator()<Q5K>();
  require(format == Formats::of<Q6K>(), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "not_blocks",
                     .what = std::string(format.str()) + " is not stored in blocks of GGUF",
                     .todo = "ask is_ggml_block first"};
  });
  return f.template operator()<Q6K>();
}

}  // namespace

void Q4_0::unpack(const std::byte* block, BlockValues& out) {
  out.scales[0] = number_at(block, 0);
  for (int i = 0; i < 16; ++i) {
    const unsigned pair = byte_at(block, 2 + i);
    out.codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(pair & 15u);
    out.codes[static_cast<std::size_t>(i) + 16] = static_cast<std::uint8_t>(pair >> 4);
  }
}

void Q8_0::unpack(const std::byte* block, BlockValues& out) {
  out.scales[0] = number_at(block, 0);
  for (int i = 0; i < 32; ++i)
    out.codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(byte_at(block, 2 + i) ^ 0x80u);
}

void Q4K::unpack(const std::byte* block, BlockValues& out) {
  unpack_six_bits(block, out);
  unpack_nibbles(block + 16, out);
}

void Q5K::unpack(const std::byte* block, BlockValues& out) {
  unpack_six_bits(block, out);
  unpack_nibbles(block + 48, out);
  for (int c = 0; c < 256; ++c) {  // byte c % 32 has the fifth bits of columns c, c + 32, ...
    const unsigned fifth = byte_at(block, 16 + c % 32) >> c / 32 & 1u;
    out.codes[static_cast<std::size_t>(c)] |= static_cast<std::uint8_t>(fifth << 4);
  }
}

void Q6K::unpack(const std::byte* block, BlockValues& out) {
  const float scale = number_at(block, 208);
  for (int group = 0; group < 16; ++group)
    out.scales[static_cast<std::size_t>(group)] =
        scale * static_cast<float>(static_cast<std::int8_t>(byte_at(block, 192 + group)));
  // Each half of 128 columns: 64 bytes of nibbles, 32 bytes of pairs; quarter q of a half is columns 32 q on.
  for (int c = 0; c < 256; ++c) {
    const int half = c / 128, quarter = c % 128 / 32, i = c % 32;
    const unsigned nibbles = byte_at(block, 64 * half + 32 * (quarter % 2) + i);
    const unsigned low = quarter < 2 ? nibbles & 15u : nibbles >> 4;
    const unsigned high = byte_at(block, 128 + 32 * half + i) >> 2 * quarter & 3u;
    out.codes[static_cast<std::size_t>(c)] = static_cast<std::uint8_t>(low | high << 4);
  }
}

template <class Block>
void GgmlBlocks<Block>::decode_row(const WeightMatrix& matrix, std::int64_t row, float* out) {
  decode_blocks<Block>(matrix, row, out);
}

template <class Block>
void GgmlBlocks<Block>::decode_row(const WeightMatrix& matrix, std::int64_t row, double* out) {
  decode_blocks<Block>(matrix, row, out);
}

template void GgmlBlocks<Q4_0>::decode_row(const WeightMatrix&, std::int64_t, float*);
template void GgmlBlocks<Q4_0>::decode_row(const WeightMatrix&, std::int64_t, double*);
template void GgmlBlocks<Q8_0>::decode_row(const WeightMatrix&, std::int64_t, float*);
template void GgmlBlocks<Q8_0>::decode_row(const WeightMatrix&, std::int64_t, double*);
template void GgmlBlocks<Q4K>::decode_row(const WeightMatrix&, std::int64_t, float*);
template void GgmlBlocks<Q4K>::decode_row(const WeightMatrix&, std::int64_t, double*);
template void GgmlBlocks<Q5K>::decode_row(const WeightMatrix&, std::int64_t, float*);
template void GgmlBlocks<Q5K>::decode_row(const WeightMatrix&, std::int64_t, double*);
template void GgmlBlocks<Q6K>::decode_row(const WeightMatrix&, std::int64_t, float*);
template void GgmlBlocks<Q6K>::decode_row(const WeightMatrix&, std::int64_t, double*);

int block_zero(Format format) {
  return visit_block(format, []<class Block>() { return Block::zero; });
}

BlockNumbers block_numbers(Format format) {
  return visit_block(format, []<class Block>() { return Block::numbers; });
}

bool has_minimums(Format format) { return block_numbers(format).minimum >= 0; }

void unpack_block(Format format, const std::byte* block, BlockValues& out) {
  visit_block(format, [&]<class Block>() { Block::unpack(block, out); });
}

}  // namespace sluice::format
