// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/integer_columns.h"

#include <algorithm>
#include <numeric>

#include "experts/cpu/common/packed.h"
#include "format/geometry.h"
#include "format/integers.h"

namespace sluice::cpu {
namespace {

ScaleType scale_type(const WeightMatrix& matrix) {
  const DType dtype = matrix.scales.dtype;
  return dtype == DType::f16 ? ScaleType::f16 : dtype == DType::bf16 ? ScaleType::bf16 : ScaleType::f32;
}

/// Columns of every group.
std::vector<int> sizes_of(const WeightMatrix& matrix) {
  std::vector<int> sizes(static_cast<std::size_t>(format::groups_of_row(matrix)));
  for (std::int64_t c = 0; c < matrix.cols; ++c) ++sizes[format::group_of_column(matrix, c)];
  return sizes;
}

/// An act-order whose groups have as many columns as they say: what a quantiser writes, though nothing in a
/// file makes sure of it.
bool is_regular(const WeightMatrix& matrix, const std::vector<int>& sizes) {
  std::int64_t left = matrix.cols;
  for (const int size : sizes) {
    if (size != std::min<std::int64_t>(left, matrix.integers.grouping.columns)) return false;
    left -= size;
  }
  return true;
}

/// The same kind of matrix of all experts, one after the other.
class Looker {
 public:
  void see(const WeightMatrix& matrix) {
    if (!is_integer(matrix.format)) return;
    const ScaleType type = scale_type(matrix);
    seen_.scales = first_ || type == seen_.scales ? type : ScaleType::f32;
    first_ = false;
    if (!matrix.integers.grouping.act_order || format::groups_of_row(matrix) == 1) return;
    const std::vector<int> sizes = sizes_of(matrix);
    regular_ &= is_regular(matrix, sizes);
    int pieces = 0;
    for (const int size : sizes) pieces += (size + 15) / 16;
    most_pieces_ = std::max(most_pieces_, pieces);
  }

  SeenIntegers seen() const { return {seen_.scales, regular_ ? 0 : most_pieces_}; }

 private:
  SeenIntegers seen_;
  bool first_ = true, regular_ = true;
  int most_pieces_ = 0;
};

/// Nothing yet, of the size that it will have.
ColumnOrder empty_order(const IntegerLayout& layout) {
  return {std::vector<std::int32_t>(static_cast<std::size_t>(32 * layout.steps()), -1),
          std::vector<std::int32_t>(static_cast<std::size_t>(layout.steps() * layout.parts()), -1)};
}

/// Of blocks, whose groups are parts.
ColumnOrder matrix_order(const WeightMatrix& matrix, const IntegerLayout& layout) {
  ColumnOrder order = empty_order(layout);
  std::iota(order.columns.begin(), order.columns.begin() + matrix.cols, 0);
  std::iota(order.groups.begin(), order.groups.begin() + (matrix.cols + layout.part - 1) / layout.part, 0);
  return order;
}

}  // namespace

SeenWeights look_at(std::span<const ExpertWeights> experts) {
  Looker gate, up, down;
  for (const ExpertWeights& expert : experts) {
    if (expert.gate) gate.see(*expert.gate);
    up.see(expert.up);
    down.see(expert.down);
  }
  return {gate.seen(), up.seen(), down.seen()};
}

ColumnOrder order_of(const WeightMatrix& matrix, const IntegerLayout& layout) {
  if (is_ggml_block(matrix.format)) return matrix_order(matrix, layout);
  std::vector<std::int32_t> sorted(static_cast<std::size_t>(matrix.cols));
  std::iota(sorted.begin(), sorted.end(), 0);
  const auto group_of = [&](std::int32_t column) {
    return static_cast<std::int32_t>(format::group_of_column(matrix, column));
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](std::int32_t a, std::int32_t b) { return group_of(a) < group_of(b); });

  ColumnOrder order = empty_order(layout);
  std::int32_t before = 0;
  std::size_t at = 0;
  for (const std::int32_t column : sorted) {
    const std::int32_t group = group_of(column);
    const auto part = static_cast<std::size_t>(layout.part);
    if (group != before) at = (at + part - 1) / part * part;
    before = group;
    order.columns[at] = column;
    order.groups[at / part] = group;
    ++at;
  }
  return order;
}

}  // namespace sluice::cpu
