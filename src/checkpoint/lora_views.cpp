// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/lora_views.h"

#include <utility>

namespace sluice::checkpoint {
namespace {

/// Rows first, first + step, ...: half of them.
LoraMatrix half_of_rows(LoraMatrix matrix, std::int64_t first, std::int64_t step) {
  matrix.data += first * matrix.row_stride;
  matrix.row_stride *= step;
  matrix.rows /= 2;
  return matrix;
}

/// Rows of A of one expert.
LoraMatrix rows_of(const LoraStack& stack, std::int64_t expert) {
  LoraMatrix matrix = matrix_of(stack.a);
  matrix.data += expert * stack.rank * matrix.row_stride;
  matrix.rows = stack.rank;
  return matrix;
}

/// Columns of B of one expert.
LoraMatrix columns_of(const LoraStack& stack, std::int64_t expert) {
  LoraMatrix matrix = matrix_of(stack.b);
  matrix.data += expert * matrix.col_stride;
  matrix.col_stride *= stack.experts;
  matrix.cols = stack.rank;
  return matrix;
}

}  // namespace

LoraMatrix transposed(LoraMatrix matrix) {
  std::swap(matrix.rows, matrix.cols);
  std::swap(matrix.row_stride, matrix.col_stride);
  return matrix;
}

LoraMatrix matrix_of(const TensorView& tensor) {
  const std::ptrdiff_t width = bits(tensor.dtype) / 8;
  return {.data = tensor.data,
          .dtype = tensor.dtype,
          .rows = tensor.shape[0],
          .cols = tensor.shape[1],
          .row_stride = tensor.shape[1] * width,
          .col_stride = width};
}

LoraDelta plain_part(const LoraStack& stack, std::int64_t expert) {
  return {.a = rows_of(stack, expert), .b = columns_of(stack, expert)};
}

LoraDelta swapped_part(const LoraStack& stack, std::int64_t expert) {
  return {.a = transposed(columns_of(stack, expert)), .b = transposed(rows_of(stack, expert))};
}

LoraDelta gate_of(LoraDelta both, GateUp order) {
  both.b = half_of_rows(both.b, 0, order == GateUp::turns ? 2 : 1);
  return both;
}

LoraDelta up_of(LoraDelta both, GateUp order) {
  both.b = order == GateUp::turns ? half_of_rows(both.b, 1, 2) : half_of_rows(both.b, both.b.rows / 2, 1);
  return both;
}

StackRule stack_rule(std::string_view model_type) {
  if (model_type == "gpt_oss") return {.gate_up = GateUp::turns, .order = StackOrder::inputs_first};
  if (model_type == "llama4" || model_type == "llama4_text")
    return {.order = StackOrder::inputs_first_unmarked};
  return {};
}

}  // namespace sluice::checkpoint
