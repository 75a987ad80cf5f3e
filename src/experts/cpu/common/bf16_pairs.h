// SPDX-License-Identifier: Apache-2.0
// Inputs as pairs of bf16, for instructions that add products of bf16 to a float32
// (docs/decisions/022-avx512-bf16.md, 023-amx.md).
//
// Nothing is rounded here: a row is written as one, two or three rows of bf16 whose sum it is. A dword holds
// two columns, those of which a decoder finds the weights in one dword.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cpu {

/// Which columns share a dword. Dword i of a row has the first of them in its low half.
enum class PairOrder : std::uint8_t {
  neighbours,  // 2i and 2i + 1
  halves,  // of eight columns from 8 (i / 4) on, i % 4 and i % 4 + 4: a shift of a line of eight 4-bit codes
};

/// Where terms go: the first is at `at`, each `stride` pairs after the one before, and zero from the end of
/// the row to that.
struct TermsOut {
  std::int32_t* at;
  std::size_t stride;
  int most;  // terms, 1 or 3
};

/// Writes `columns` values, a multiple of 8, as terms of bf16, the largest first, and returns how many those
/// are: 1 for a row of bf16, at most 2 for one of binary16, 3 for any float32. 0, with nothing written that
/// may be used, where that is more than `most`, or a value is so small that products may leave the normal
/// numbers, where these instructions round to zero, or no number (one term may hold such). Depends on the row
/// alone.
[[nodiscard]] int to_bf16_terms(const float* row, int columns, PairOrder order, const TermsOut& out);

}  // namespace sluice::cpu
