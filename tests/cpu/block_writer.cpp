// SPDX-License-Identifier: Apache-2.0
#include "tests/cpu/block_writer.h"

#include <algorithm>
#include <string_view>

#include "core/bits.h"
#include "format/f16.h"
#include "format/geometry.h"
#include "format/ggml_blocks.h"

namespace sluice::testing {

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

}  // namespace sluice::testing
