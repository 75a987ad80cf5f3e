// SPDX-License-Identifier: Apache-2.0
// Blocks of GGUF with values that are written down, which no encoder promises.
#pragma once

#include <vector>

#include "format/geometry.h"
#include "testing/draw.h"

namespace sluice::testing {

/// Powers of two: `count` of them from `least` on.
struct BlockScales {
  float least = 1;
  int count = 2;
};

/// Makes a matrix in a block format hold `values`, each -1, 0 or 1, times a drawn scale for every group (of
/// q4_0 and q8_0, a block). Minimums are as many scales as leave room for -1 and 1, so that the values come
/// out as they are.
void write_blocks(Draw& draw, const std::vector<float>& values, const BlockScales& scales,
                  format::Encoded& encoded);

}  // namespace sluice::testing
