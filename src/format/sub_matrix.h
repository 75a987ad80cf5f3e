// SPDX-License-Identifier: Apache-2.0
// Parts of weight matrices: a run of rows and a run of columns, as a view where the layout of the whole
// allows it and as a copy where it does not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/spec.h"

namespace sluice::format {

/// [first, last).
struct Run {
  std::int64_t first = 0, last = 0;
  std::int64_t size() const { return last - first; }
  friend bool operator==(const Run&, const Run&) = default;
};

/// A part starts at a multiple of so many rows.
std::int64_t row_unit(Format format);
/// And at a multiple of so many columns, where it ends too unless the matrix does.
std::int64_t column_unit(Format format, const Grouping& grouping);

/// The grouping of `columns` columns out of a matrix of `of`. Those of an act-order may be of any group:
/// there are at least as many groups as before, and so fewer columns in each.
Grouping grouping_of_part(const Grouping& grouping, std::int64_t columns, std::int64_t of);

/// Rows and columns of a matrix, by units. Columns that are not in `kept` are zeros, which every format has
/// exactly but q4_k and q5_k within a group that has a minimum (unsupported, "slice_in_group").
struct Part {
  Run rows, columns, kept;
};

/// Memory that parts own.
using Owned = std::vector<std::shared_ptr<const void>>;

WeightMatrix part_of(const WeightMatrix& matrix, const Part& part, Owned& owned);

}  // namespace sluice::format
