// SPDX-License-Identifier: Apache-2.0
// Where a block keeps the bits of a code, scale or minimum is found by asking its decoder: every bit of an
// empty block is set alone, and what changes is what it is a bit of. So nothing of a layout is written down
// here a second time.
#include "testing/exact_blocks.h"

#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "core/bits.h"
#include "format/f16.h"
#include "format/ggml_blocks.h"

namespace sluice::testing {
namespace {

/// The bit that adds `amount` (a power of two) to entry `index`.
using BitsOf = std::map<std::pair<int, int>, int>;

class BlockWriter {
 public:
  explicit BlockWriter(Format format)
      : format_(format),
        geometry_(geometry(format)),
        empty_(static_cast<std::size_t>(geometry_.block_bytes)) {
    const format::BlockNumbers numbers = format::block_numbers(format_);
    set_number(empty_.data(), numbers.scale, 1);
    if (numbers.minimum >= 0) set_number(empty_.data(), numbers.minimum, 1);
    const format::BlockValues before = unpack(empty_);
    for (int bit = 0; bit < geometry_.block_bytes * 8; ++bit) {
      if (is_number(bit / 8)) continue;
      std::vector<std::byte> block = empty_;
      block[static_cast<std::size_t>(bit / 8)] ^= std::byte(1 << bit % 8);
      const format::BlockValues after = unpack(block);
      for (int c = 0; c < geometry_.block_cols; ++c)
        note(codes_, c, after.codes[at(c)] - before.codes[at(c)], bit);
      for (int g = 0; g < groups(); ++g) {
        note(scales_, g, static_cast<int>(after.scales[at(g)] - before.scales[at(g)]), bit);
        note(minimums_, g, static_cast<int>(after.minimums[at(g)] - before.minimums[at(g)]), bit);
      }
    }
    empty_codes_ = before.codes;
  }

  int groups() const { return geometry_.block_cols / geometry_.group_cols; }

  /// `values` of one block.
  void write(Draw& draw, const float* values, std::byte* block) const {
    std::memcpy(block, empty_.data(), empty_.size());
    const bool minimums = format::has_minimums(format_);
    if (scales_.empty()) set_number(block, format::block_numbers(format_).scale, draw.below(2) == 0 ? 1 : 2);
    for (int g = 0; g < groups(); ++g) {
      const int scale = draw.below(2) == 0 ? 1 : 2,
                zero = minimums ? 1 + static_cast<int>(draw.below(13)) : 0;
      if (!scales_.empty()) set(scales_, g, scale, block);
      if (minimums) set(minimums_, g, scale * zero, block);
      for (int c = g * geometry_.group_cols; c < (g + 1) * geometry_.group_cols; ++c)
        set_code(c, static_cast<int>(values[c]) + (minimums ? zero : format::block_zero(format_)), block);
    }
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  static void set_number(std::byte* block, int offset, float value) {
    store<std::uint16_t>(block + offset, format::float_to_f16(value));
  }
  bool is_number(int byte) const {
    const format::BlockNumbers numbers = format::block_numbers(format_);
    const auto in = [&](int offset) { return offset >= 0 && byte >= offset && byte < offset + 2; };
    return in(numbers.scale) || in(numbers.minimum);
  }
  format::BlockValues unpack(const std::vector<std::byte>& block) const {
    format::BlockValues values{};
    format::unpack_block(format_, block.data(), values);
    return values;
  }
  static void note(BitsOf& bits, int index, int change, int bit) {
    if (change != 0) bits[{index, change}] = bit;
  }
  static void flip(int bit, std::byte* block) { block[bit / 8] ^= std::byte(1 << bit % 8); }
  static void set(const BitsOf& bits, int index, int value, std::byte* block) {
    for (int power = 1; power <= value; power *= 2)
      if (value & power) flip(bits.at({index, power}), block);
  }
  /// Codes of an empty block need not be zero: bits that are set count down.
  void set_code(int column, int value, std::byte* block) const {
    const int before = empty_codes_[at(column)];
    for (int power = 1; power <= 128; power *= 2) {
      if ((before & power) == (value & power)) continue;
      flip(codes_.at({column, value & power ? power : -power}), block);
    }
  }

  const Format format_;
  const format::Geometry& geometry_;
  std::vector<std::byte> empty_;
  std::array<std::uint8_t, format::kMostBlockCols> empty_codes_{};
  BitsOf codes_, scales_, minimums_;
};

}  // namespace

void write_blocks(Draw& draw, const std::vector<float>& values, format::Encoded& encoded) {
  static std::map<std::string, BlockWriter> writers;  // a writer asks some thousand times
  const Format format = encoded.matrix.format;
  const auto found = writers.try_emplace(std::string(format.str()), format).first;
  const format::Geometry& shape = geometry(format);
  for (std::size_t i = 0; i * static_cast<std::size_t>(shape.block_cols) < values.size(); ++i)
    found->second.write(draw, values.data() + i * static_cast<std::size_t>(shape.block_cols),
                        encoded.codes.data() + i * static_cast<std::size_t>(shape.block_bytes));
}

}  // namespace sluice::testing
