// SPDX-License-Identifier: Apache-2.0
#include "testing/exact_blocks.h"

#include <algorithm>
#include <string_view>

#include "core/bits.h"
#include "format/f16.h"
#include "format/ggml_blocks.h"

namespace sluice::testing {
namespace {

/// Writes a block number by number (docs/formats/gguf.md has the bytes).
class BlockWriter {
 public:
  /// Zeros the block and writes `number` into it, and as that of the minimums where it has such.
  BlockWriter(Format format, std::byte* block, float number);

  /// Of formats whose scales are products. A minimum where the format has none must be 0.
  void set_factors(int group, int scale, int minimum);
  /// Once for every column.
  void set_code(int column, int code);

 private:
  void add(int byte, int bits) { block_[byte] |= std::byte(bits); }
  void set_six_bits(int group, int scale, int minimum);

  const Format format_;
  std::byte* const block_;
};

BlockWriter::BlockWriter(Format format, std::byte* block, float number) : format_(format), block_(block) {
  const format::BlockNumbers numbers = format::block_numbers(format);
  std::fill_n(block, geometry(format).block_bytes, std::byte{0});
  store(block + numbers.scale, format::float_to_f16(number));
  if (numbers.minimum >= 0) store(block + numbers.minimum, format::float_to_f16(number));
}

void BlockWriter::set_factors(int group, int scale, int minimum) {
  if (format_.str() == "q6_k")
    block_[192 + group] = std::byte(scale & 255);
  else
    set_six_bits(group, scale, minimum);
}

void BlockWriter::set_six_bits(int group, int scale, int minimum) {
  constexpr int kAt = 4;
  if (group < 4) {
    add(kAt + group, scale);
    add(kAt + group + 4, minimum);
    return;
  }
  add(kAt + group + 4, (scale & 15) | (minimum & 15) << 4);
  add(kAt + group - 4, scale >> 4 << 6);
  add(kAt + group, minimum >> 4 << 6);
}

void BlockWriter::set_code(int column, int code) {
  const std::string_view name = format_.str();
  if (name == "q8_0") {
    block_[2 + column] = std::byte(code ^ 128);
  } else if (name == "q4_0") {
    add(2 + column % 16, column < 16 ? code : code << 4);
  } else if (name == "q6_k") {
    const int half = column / 128, quarter = column % 128 / 32, i = column % 32;
    add(64 * half + 32 * (quarter % 2) + i, (code & 15) << (quarter < 2 ? 0 : 4));
    add(128 + 32 * half + i, code >> 4 << 2 * quarter);
  } else {
    const bool fifths = name == "q5_k";
    add((fifths ? 48 : 16) + column / 64 * 32 + column % 32, (code & 15) << column % 64 / 32 * 4);
    if (fifths) add(16 + column % 32, code >> 4 << column / 32);
  }
}

}  // namespace

void write_blocks(Draw& draw, const std::vector<float>& values, const BlockScales& scales,
                  format::Encoded& encoded) {
  const Format format = encoded.matrix.format;
  const format::Geometry& g = geometry(format);
  const bool products = g.block_cols == format::kMostBlockCols, minimums = format::has_minimums(format);
  const auto* value = values.data();
  for (std::size_t at = 0; at < encoded.codes.size(); at += static_cast<std::size_t>(g.block_bytes)) {
    const int power = products ? 1 : 1 << draw.below(scales.count);
    BlockWriter block(format, encoded.codes.data() + at, scales.least * static_cast<float>(power));
    int zero = format::block_zero(format);
    for (int c = 0; c < g.block_cols; ++c, ++value) {
      if (products && c % g.group_cols == 0) {
        const int factor = 1 << draw.below(scales.count);
        if (minimums) zero = static_cast<int>(1 + draw.below(14));
        block.set_factors(c / g.group_cols, factor, minimums ? zero * factor : 0);
      }
      block.set_code(c, zero + static_cast<int>(*value));
    }
  }
}

}  // namespace sluice::testing
