// SPDX-License-Identifier: Apache-2.0
// Inputs as pairs of bf16, for instructions that add two products of bf16 to a float32
// (docs/decisions/022-avx512-bf16.md).
//
// Only rows that are bf16 already are written so, bit for bit: nothing is rounded here. A dword holds two
// columns, those of which a decoder finds the weights in one dword.
#pragma once

#include <cstdint>

namespace sluice::cpu {

/// Which columns share a dword. Dword i of a row has the first of them in its low half.
enum class PairOrder : std::uint8_t {
  neighbours,  // 2i and 2i + 1
  halves,  // of eight columns from 8 (i / 4) on, i % 4 and i % 4 + 4: a shift of a line of eight 4-bit codes
};

/// Writes `columns` values, a multiple of 8. False, with nothing written that may be used, when one is not a
/// bf16, or is so small that its products may leave the normal numbers, where these instructions round to
/// zero. Depends on the row alone.
[[nodiscard]] bool to_bf16_pairs(const float* row, int columns, PairOrder order, std::int32_t* out);

}  // namespace sluice::cpu
