// SPDX-License-Identifier: Apache-2.0
// Blocks of GGUF with values that are written down, which no encoder promises.
#pragma once

#include <vector>

#include "format/geometry.h"
#include "testing/draw.h"

namespace sluice::testing {

/// Makes a matrix in a block format hold `values`, each -1, 0 or 1, times a drawn scale of 1 or 2 a group.
/// Zero points and minimums are drawn too where the format has minimums.
void write_blocks(Draw& draw, const std::vector<float>& values, format::Encoded& encoded);

}  // namespace sluice::testing
