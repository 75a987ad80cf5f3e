// SPDX-License-Identifier: Apache-2.0
// Parts of matrices that lie in GGUF's blocks (docs/decisions/018-slices.md).
#pragma once

#include "format/sub_matrix.h"

namespace sluice::format {

/// True when codes and scales of the matrix are in blocks, of integers or of 4-bit floats.
bool in_blocks(const WeightMatrix& matrix);

/// As part_of. Throws unsupported "slice_in_group" where a group with a minimum has kept columns and others:
/// no code of such a group is zero.
WeightMatrix part_of_blocks(const WeightMatrix& matrix, const Part& part, Owned& owned);

}  // namespace sluice::format
