// SPDX-License-Identifier: Apache-2.0
// float32 rows to fixed point. Compiled for the baseline.
#pragma once

#include <cstddef>

#include "experts/cpu/common/digits.h"

namespace sluice::cpu {

/// Bytes of a row of `columns`, in either form.
std::size_t digit_bytes(int columns);

/// Writes `columns` values, rounded up to whole steps; the row must be readable and zero up to there. False,
/// with nothing written that may be used, when a value is not finite, or when so few values are so much
/// larger than the others of their 32 columns that fixed point would cost more than float32 sums do. Depends
/// on the row alone.
[[nodiscard]] bool to_digits(const float* row, int columns, ByteDigits* out);
[[nodiscard]] bool to_digits(const float* row, int columns, WordDigits* out);

}  // namespace sluice::cpu
