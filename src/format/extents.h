// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a view are: for whoever has to name them, hash them or give them back, and need not know
// what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sluice/spec.h"

namespace sluice::format {

/// `lines` runs of `line_bytes` bytes, `stride` bytes from one to the next. Lines may hold bytes between
/// elements that are not the view's own; nothing before the first or behind the last byte is in it.
struct Extent {
  const std::byte* data = nullptr;
  std::int64_t lines = 0;
  std::ptrdiff_t stride = 0;
  std::size_t line_bytes = 0;

  /// From the first byte to behind the last one, whatever lies between lines included.
  const std::byte* begin() const { return stride < 0 ? data + (lines - 1) * stride : data; }
  const std::byte* end() const { return (stride < 0 ? data : data + (lines - 1) * stride) + line_bytes; }
};

/// Codes, then scales, zero points and the order of columns, where it has them.
std::vector<Extent> extents_of(const WeightMatrix& matrix);
/// Of all matrices and biases.
std::vector<Extent> extents_of(const ExpertWeights& expert);

}  // namespace sluice::format
