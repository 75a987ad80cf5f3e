// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/common/column_order.h"

#include <algorithm>
#include <numeric>

#include "format/geometry.h"
#include "format/grouped_row.h"
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

bool has_order(Format format) { return is_integer(format) || is_ggml_block(format); }

/// Of 32 columns lane t has packed columns 8 t to 8 t + 7, the first four for the first step: those are
/// columns 4 t to 4 t + 3 of the first group of 16, and the others of the second.
ColumnOrder order_of_sixteens(std::int64_t columns) {
  ColumnOrder order;
  for (std::int64_t first = 0; first < columns; first += 32) {
    for (std::int64_t k = 0; k < 32; ++k) {
      const std::int64_t column = first + k % 8 / 4 * 16 + k / 8 * 4 + k % 4;
      order.columns.push_back(column < columns ? static_cast<std::int32_t>(column) : -1);
    }
    for (const std::int64_t group : {first / 16, first / 16 + 1})
      order.groups.push_back(16 * group < columns ? static_cast<std::int32_t>(group) : -1);
  }
  return order;
}

}  // namespace

ColumnOrder order_of(const WeightMatrix& matrix, Storage storage) {
  if (has_own_order(storage)) return order_of_sixteens(matrix.cols);
  std::vector<std::int32_t> sorted(static_cast<std::size_t>(matrix.cols));
  std::iota(sorted.begin(), sorted.end(), 0);
  const bool blocks = is_ggml_block(matrix.format);
  const std::int64_t of_group = blocks ? format::grouped_shape(matrix).columns : 0;
  const auto group_of = [&](std::int32_t column) {
    return static_cast<std::int32_t>(blocks ? column / of_group : format::group_of_column(matrix, column));
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
  if (has_order(formats.down)) down = order_of(expert.down, storage_of(formats.down, formats.down_grouping));
  if (!has_order(formats.up)) return;
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
