// SPDX-License-Identifier: Apache-2.0
// A row of the caller's input as float32.
#pragma once

#include "sluice/layer.h"

namespace sluice::cpu {

/// Writes the `rows.width` values of a row; nothing is lost.
void read_row(const RowsView& rows, int row, float* out);

}  // namespace sluice::cpu
