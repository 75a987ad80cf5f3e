// SPDX-License-Identifier: Apache-2.0
// Writes a block of GGUF number by number (docs/formats/gguf.md has the bytes), for layers whose values a
// test chooses.
#pragma once

#include <cstddef>

#include "sluice/spec.h"

namespace sluice::testing {

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

}  // namespace sluice::testing
