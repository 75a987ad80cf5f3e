// SPDX-License-Identifier: Apache-2.0
// float32 rows to int8. Compiled for the baseline.
#pragma once

#include "experts/cpu/common/int8.h"

namespace sluice::cpu {

/// Writes `columns` values, rounded up to whole steps; the row must be readable and zero up to there. False,
/// with nothing written that may be used, where a value is NaN, infinite or above 2^110, or where the largest
/// of 32 is below 2^-100 but not 0. Depends on the row alone.
[[nodiscard]] bool to_int8(const float* row, int columns, Int8Columns* out);

}  // namespace sluice::cpu
