// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/common/column_order.h"

#include <algorithm>
#include <numeric>

#include "format/geometry.h"
#include "format/integers.h"

namespace sluice::cuda {
namespace {

std::size_t round_up(std::size_t value, int to) {
  const auto unit = static_cast<std::size_t>(to);
  return (value + unit - 1) / unit * unit;
}

/// The same behind `columns` others, a multiple of a block.
void put_behind(std::size_t columns, Storage storage, ColumnOrder& order) {
  order.columns.insert(order.columns.begin(), columns, -1);
  order.groups.insert(order.groups.begin(), columns / static_cast<std::size_t>(group_columns(storage)), -1);
}

}  // namespace

ColumnOrder order_of(const WeightMatrix& matrix, Storage storage) {
  std::vector<std::int32_t> sorted(static_cast<std::size_t>(matrix.cols));
  std::iota(sorted.begin(), sorted.end(), 0);
  const auto group_of = [&](std::int32_t column) {
    return static_cast<std::int32_t>(format::group_of_column(matrix, column));
  };
  if (matrix.integers.column_groups != nullptr) std::ranges::stable_sort(sorted, {}, group_of);

  ColumnOrder order;
  const int unit = group_columns(storage);
  std::int32_t before = -1;
  for (const std::int32_t column : sorted) {
    const std::int32_t group = group_of(column);
    if (group != before) order.columns.resize(round_up(order.columns.size(), unit), -1);
    before = group;
    order.columns.push_back(column);
    order.groups.resize(round_up(order.columns.size(), unit) / static_cast<std::size_t>(unit), group);
  }
  return order;
}

ExpertOrders::ExpertOrders(const ExpertsSpec& spec, const ExpertWeights& expert) {
  const MatrixFormats& formats = spec.formats;
  if (is_integer(formats.down)) down = order_of(expert.down, storage_of(formats.down, formats.down_grouping));
  if (!is_integer(formats.up)) return;
  const Storage storage = storage_of(formats.up, formats.up_grouping);
  up = order_of(expert.up, storage);
  if (!expert.gate) return;
  gate = order_of(*expert.gate, storage);
  if (gate != up) put_behind(round_up(gate.columns.size(), kBlockColumns), storage, up);
}

std::vector<std::int32_t> ExpertOrders::input(int size) const {
  std::vector<std::int32_t> columns(static_cast<std::size_t>(size), -1);
  for (const ColumnOrder* order : {&gate, &up})
    for (std::size_t k = 0; k < order->columns.size(); ++k)
      columns[k] = std::max(columns[k], order->columns[k]);
  return columns;
}

PackedColumns packed_columns(const ExpertsSpec& spec, std::span<const ExpertWeights> experts) {
  PackedColumns most;
  if (!spec.formats.up_grouping.act_order && !spec.formats.down_grouping.act_order) return most;
  for (const ExpertWeights& expert : experts) {
    const ExpertOrders orders(spec, expert);
    most.up = std::max(
        {most.up, static_cast<int>(orders.gate.columns.size()), static_cast<int>(orders.up.columns.size())});
    most.down = std::max(most.down, static_cast<int>(orders.down.columns.size()));
  }
  return most;
}

}  // namespace sluice::cuda
