// SPDX-License-Identifier: Apache-2.0
// Rows side by side: 16 bytes of each of several rows, turned so that element c of row r comes to c * rows +
// r. In vectors of 16 bytes, which every processor of interest has; with single loads and stores packing
// waits for instructions and not for memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

namespace sluice::cpu {

inline constexpr int kTurnedBytes = 16;  // of a row

namespace turning {

template <class Element>
using Vector __attribute__((vector_size(kTurnedBytes))) = Element;

/// The halves of a and b that start at element kFirst, an element of each in turn.
template <int kFirst, class V, std::size_t... kIndex>
V interleave(V a, V b, std::index_sequence<kIndex...>) {
  constexpr int kCount = sizeof...(kIndex);
  return __builtin_shufflevector(a, b, (kFirst + int{kIndex} / 2 + int{kIndex} % 2 * kCount)...);
}

}  // namespace turning

/// Row r starts at `first + r * stride`. Writes kRows * 16 bytes.
///
/// All elements in a row are indexed by (row, column). Interleaving the first half with the second moves the
/// highest bit of the index to its lowest end; after as many rounds as a row number has bits the index is
/// (column, row).
template <class Element, int kRows>
void turn(const std::byte* first, std::ptrdiff_t stride, std::byte* out) {
  using V = turning::Vector<Element>;
  constexpr auto kIndices = std::make_index_sequence<kTurnedBytes / sizeof(Element)>();
  constexpr int kHalf = static_cast<int>(kTurnedBytes / sizeof(Element)) / 2;
  V all[kRows], next[kRows];
  for (int r = 0; r < kRows; ++r) std::memcpy(&all[r], first + r * stride, sizeof(V));
  for (int round = 1; round < kRows; round *= 2) {
    for (int i = 0; i < kRows / 2; ++i) {
      next[2 * i] = turning::interleave<0>(all[i], all[i + kRows / 2], kIndices);
      next[2 * i + 1] = turning::interleave<kHalf>(all[i], all[i + kRows / 2], kIndices);
    }
    for (int r = 0; r < kRows; ++r) all[r] = next[r];
  }
  std::memcpy(out, all, sizeof(all));
}

}  // namespace sluice::cpu
