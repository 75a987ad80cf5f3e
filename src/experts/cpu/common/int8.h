// SPDX-License-Identifier: Apache-2.0
// Inputs and intermediates rounded to int8, for backends that declare accuracy::Int8Activations
// (docs/decisions/030-int8-activations.md).
//
// 32 neighbouring columns of a row share a step, which is no power of two:
//
//   largest = max |x|      step = largest / 127      q = x * (127 / largest), rounded to nearest even
//
// each operation in float32. So |q| <= 127, and x becomes q * step. Nothing else is rounded more than in
// float32: the weights are exact, and so is the sum of code * q over the columns that share a scale.
//
// The order is that of digits.h: codes[2 l + nibble] has the columns 8 l + nibble + {0, 2, 4, 6}.
//
// This header is compiled for every instruction set: no functions.
#pragma once

#include <cstdint>

#include "experts/cpu/common/digits.h"

namespace sluice::cpu {

/// The largest |q|.
inline constexpr int kMostInt8 = 127;

/// Sums of q for zero points: of the columns whose bytes are in the low word of the dwords of `codes`, in the
/// low word, and of those in the high one. Of columns 0 to 15, of 16 to 31, and of all.
enum Int8Sums { kInt8First, kInt8Second, kInt8Whole, kInt8SumKinds };

struct Int8Columns {
  float step, sum;  // sum: of all q, what a minimum is multiplied by
  std::int32_t sums[kInt8SumKinds];
  std::int32_t codes[kDigitColumns / 4];
};

}  // namespace sluice::cpu
