// SPDX-License-Identifier: Apache-2.0
#include "format/fp4_blocks.h"

#include "format/formats.h"

namespace sluice::format {

bool blocks_are_known(const WeightMatrix& matrix) {
  const BlockLayout& blocks = matrix.blocks;
  const auto is = [&](const BlockLayout& known) {
    return blocks.columns == known.columns && blocks.bytes == known.bytes;
  };
  if (blocks.columns == 0) return true;
  if (matrix.format == Formats::of<Mxfp4>()) return is(kMxfp4Block);
  return matrix.format == Formats::of<Nvfp4>() && is(kNvfp4Block);
}

}  // namespace sluice::format
