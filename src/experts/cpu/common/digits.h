// SPDX-License-Identifier: Apache-2.0
// Inputs as fixed-point numbers, for the products with codes that are small integers (4-bit formats and
// integers).
//
// An integer product has no rounding, so a sum has no order: the sum over the columns that share a scale is
// exact, is rounded to float32 once, and is the same for every instruction set, tile and batch. And 8-bit
// products come 32 in a 256-bit instruction, where float32 has 8 (docs/decisions/009-digits.md).
//
// 32 columns of a token share a step, a power of two: x = X * step, |X| <= 127 (1 + 2^8 + 2^16), nearly 2^23.
// The largest of them keeps its 24 bits but one or two, the others the bits that are at or above its last
// one. X is written in balanced digits, 3 of 8 bits for one token of an expert or 2 of 12 bits for several,
// in the order of the kernels' instructions: line l of codes (8 columns, a dword a row) gives the columns 8l
// + {0, 2, 4, 6} in its low nibbles and 8l + {1, 3, 5, 7} in its high ones.
//
// This header is compiled for every instruction set: no functions.
#pragma once

#include <cstdint>

namespace sluice::cpu {

/// Columns that share a step. A multiple of the group of every format that is multiplied by digits.
inline constexpr int kDigitColumns = 32;
/// |X| stays below two to this, and at most kMostFixed: three balanced digits of 127.
inline constexpr int kFixedBits = 23;
inline constexpr std::int32_t kMostFixed = 127 * (1 + 256 + 65536);

/// Where the exact sums of e2m1 codes begin: minus `zero code` times the sum of the digits, so that codes may
/// be unsigned. Of columns 0 to 15, 16 to 31, and both; of the two lower digits (the second counts 2^8) and
/// of the third.
///
/// Zero points of integers differ from row to row: they are multiplied by `sums`, the digits' sums of columns
/// 0 to 15 in the low word and of 16 to 31 in the high one.
enum DigitStart { kFirstHalf, kSecondHalf, kWhole, kDigitStarts };

/// Both kinds have the `sum` of their inputs as they are in fixed point, rounded once: what a minimum, which
/// is subtracted from 32 weights, is multiplied by.

/// A dword holds a digit of four columns. Where every X is a multiple of 2^8 the step is 2^8 times as large
/// and the third digit is zero: three steps of four of bf16 inputs that are normally distributed, and a third
/// of the products less.
struct ByteDigits {
  static constexpr int kDigits = 3, kBits = 8;
  float step, sum;
  std::int32_t used;  // digits that are not zero: 2 or 3
  std::int32_t start[kDigitStarts][2];
  std::int32_t sums[kDigits];
  std::int32_t digits[kDigitColumns / 4][kDigits];  // [2 l + nibble]: columns 8 l + nibble + {0, 2, 4, 6}
};

/// For codes of more than 4 bits and several tokens: a dword holds a digit of two columns. Their codes have
/// been made signed in advance.
struct WordDigits {
  static constexpr int kDigits = 2, kBits = 12;
  float step, sum;
  std::int32_t digits[kDigitColumns / 2]
                     [kDigits];  // [4 l + 2 nibble + j]: columns 8 l + nibble + 2 j + {0, 4}
};

/// Codes of e2m1 are held as 12 + twice the value, 0 to 24.
inline constexpr int kE2m1Zero = 12;

}  // namespace sluice::cpu
