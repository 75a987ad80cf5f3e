// SPDX-License-Identifier: Apache-2.0
// Encoders of GGUF's blocks, for tests, samples and benchmarks: round to nearest, once. What llama.cpp
// searches for (scales of the least weighted error) is not searched for here. A block's numbers are binary16,
// so what is beyond 65504 times the largest code saturates, and what is tiny becomes zero.
#include <algorithm>
#include <cmath>
#include <span>

#include "core/bits.h"
#include "format/encoding.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/ggml_blocks.h"

namespace sluice::format {
namespace {

constexpr double kF16Max = 65504;

/// The nearest number of binary16, finite.
double to_number(double value, std::byte* at) {
  const std::uint16_t bits = float_to_f16(static_cast<float>(std::clamp(value, -kF16Max, kF16Max)));
  store(at, bits);
  return f16_to_float(bits);
}

/// The integer nearest to value / scale within [first, last]; 0 where the scale is none.
int nearest(double value, double scale, int first, int last) {
  return scale == 0 ? std::clamp(0, first, last)
                    : static_cast<int>(std::clamp(std::round(value / scale), double(first), double(last)));
}

float of_largest_magnitude(std::span<const float> values) {
  return *std::max_element(values.begin(), values.end(),
                           [](float a, float b) { return std::abs(a) < std::abs(b); });
}

struct Codes {
  std::uint8_t of[kMostBlockCols];
};

void pack_nibbles(const Codes& codes, std::byte* nibbles) {
  for (int i = 0; i < 128; ++i) {
    const int column = i / 32 * 64 + i % 32;
    nibbles[i] = std::byte((codes.of[column] & 15) | (codes.of[column + 32] & 15) << 4);
  }
}

void encode_block(Q4_0, std::span<const float> values, std::byte* block) {
  const double scale = to_number(of_largest_magnitude(values) / -8.0, block);
  for (std::size_t i = 0; i < 16; ++i)
    block[2 + i] =
        std::byte((nearest(values[i], scale, -8, 7) + 8) | (nearest(values[i + 16], scale, -8, 7) + 8) << 4);
}

void encode_block(Q8_0, std::span<const float> values, std::byte* block) {
  const double scale = to_number(std::abs(of_largest_magnitude(values)) / 127.0, block);
  for (std::size_t i = 0; i < 32; ++i)
    store(block + 2 + i, static_cast<std::int8_t>(nearest(values[i], scale, -127, 127)));
}

/// Scales and minimums of Q4_K and Q5_K in 6 bits each; returns the codes.
Codes encode_with_minimums(std::span<const float> values, int most_code, std::byte* block) {
  double scales[8], minimums[8];
  for (std::size_t g = 0; g < 8; ++g) {
    const auto group = values.subspan(32 * g, 32);
    const auto [low, high] = std::minmax_element(group.begin(), group.end());
    minimums[g] = std::max(0.0, -double{*low});
    scales[g] = std::max(0.0, (double{*high} + minimums[g]) / most_code);
  }
  const double scale = to_number(*std::max_element(scales, scales + 8) / 63, block);
  const double minimum = to_number(*std::max_element(minimums, minimums + 8) / 63, block + 2);
  Codes codes;
  std::byte* packed = block + 4;
  for (int g = 0; g < 8; ++g) {
    const int sc = nearest(scales[g], scale, 0, 63), m = nearest(minimums[g], minimum, 0, 63);
    if (g < 4) {
      packed[g] |= std::byte(sc);
      packed[g + 4] |= std::byte(m);
    } else {
      packed[g + 4] = std::byte((sc & 15) | (m & 15) << 4);
      packed[g - 4] |= std::byte(sc >> 4 << 6);
      packed[g] |= std::byte(m >> 4 << 6);
    }
    for (int i = 32 * g; i < 32 * g + 32; ++i)
      codes.of[i] = static_cast<std::uint8_t>(
          nearest(values[static_cast<std::size_t>(i)] + minimum * m, scale * sc, 0, most_code));
  }
  return codes;
}

void encode_block(Q4K, std::span<const float> values, std::byte* block) {
  pack_nibbles(encode_with_minimums(values, 15, block), block + 16);
}

void encode_block(Q5K, std::span<const float> values, std::byte* block) {
  const Codes codes = encode_with_minimums(values, 31, block);
  pack_nibbles(codes, block + 48);
  for (int c = 0; c < 256; ++c) block[16 + c % 32] |= std::byte((codes.of[c] >> 4) << c / 32);
}

void encode_block(Q6K, std::span<const float> values, std::byte* block) {
  double scales[16];
  for (std::size_t g = 0; g < 16; ++g) scales[g] = of_largest_magnitude(values.subspan(16 * g, 16)) / -32.0;
  const double most =
      *std::max_element(scales, scales + 16, [](double a, double b) { return std::abs(a) < std::abs(b); });
  const double scale = to_number(most / -128, block + 208);
  for (int g = 0; g < 16; ++g) {
    const int sc = nearest(scales[g], scale, -128, 127);
    store(block + 192 + g, static_cast<std::int8_t>(sc));
    for (int c = 16 * g; c < 16 * g + 16; ++c) {
      const int code = nearest(values[static_cast<std::size_t>(c)], scale * sc, -32, 31) + 32;
      const int half = c / 128, quarter = c % 128 / 32, i = c % 32;
      block[64 * half + 32 * (quarter % 2) + i] |= std::byte((code & 15) << (quarter < 2 ? 0 : 4));
      block[128 + 32 * half + i] |= std::byte((code >> 4) << 2 * quarter);
    }
  }
}

}  // namespace

template <class Block>
Encoded GgmlBlocks<Block>::encode(const float* values, std::int64_t rows, std::int64_t cols) {
  constexpr Geometry g = Block::geometry;
  check_encodable(Formats::of<Block>(), values, {rows, cols});
  Encoded encoded = make_encoded(Formats::of<Block>(), {rows, cols}, DType::f32);
  const std::int64_t blocks = rows * cols / g.block_cols;
  for (std::int64_t i = 0; i < blocks; ++i)
    encode_block(Block{}, {values + i * g.block_cols, static_cast<std::size_t>(g.block_cols)},
                 encoded.codes.data() + i * g.block_bytes);
  return encoded;
}

template Encoded GgmlBlocks<Q4_0>::encode(const float*, std::int64_t, std::int64_t);
template Encoded GgmlBlocks<Q8_0>::encode(const float*, std::int64_t, std::int64_t);
template Encoded GgmlBlocks<Q4K>::encode(const float*, std::int64_t, std::int64_t);
template Encoded GgmlBlocks<Q5K>::encode(const float*, std::int64_t, std::int64_t);
template Encoded GgmlBlocks<Q6K>::encode(const float*, std::int64_t, std::int64_t);

}  // namespace sluice::format
