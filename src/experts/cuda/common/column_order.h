// SPDX-License-Identifier: Apache-2.0
// The order in which columns of integers are packed: group after group, so that a scale belongs to whole runs
// of columns whatever a file's act-order is; and of groups of 16 so that a step of a product, whose columns
// are dealt out to a quad's lanes in fours (layout.h), is one of them. Of the gate and up product the inputs
// are gathered in that order; of the down product the rows of gate and up are packed in it, and the
// intermediate comes out so.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "experts/cuda/common/layout.h"
#include "sluice/spec.h"

namespace sluice::cuda {

struct ColumnOrder {
  std::vector<std::int32_t> columns;  // of the matrix; -1 for padding
  std::vector<std::int32_t> groups;   // of every group_columns(storage) of them; -1 for none

  friend bool operator==(const ColumnOrder&, const ColumnOrder&) = default;
};

/// Ascending within a group; groups that others follow are padded to whole runs.
ColumnOrder order_of(const WeightMatrix& matrix, Storage storage);

/// Of matrices of integers and of GGUF's; empty of others. Gate and up of one order share their columns;
/// where the orders differ those of up come after those of gate, and either has nothing in the other's.
struct ExpertOrders {
  ColumnOrder gate, up, down;

  ExpertOrders() = default;
  ExpertOrders(const ExpertsSpec& spec, const ExpertWeights& expert);
  /// Of the input, of `size` columns.
  std::vector<std::int32_t> input(int size) const;
};

/// What the widest order of an expert takes, where there is act-order.
PackedColumns packed_columns(const ExpertsSpec& spec, std::span<const ExpertWeights> experts);

}  // namespace sluice::cuda
