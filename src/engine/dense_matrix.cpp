// SPDX-License-Identifier: Apache-2.0
#include "engine/dense_matrix.h"

#include <algorithm>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/formats.h"

namespace sluice {
namespace {

// Rows a task. They are decoded once and then meet every token: 230 kB of float32 at 7168 columns, which stay
// in L2 while the tokens pass.
constexpr int kTaskRows = 8;

bool is_bf16(const WeightMatrix& matrix) { return matrix.format == Formats::of<format::Bf16>(); }

}  // namespace

DenseMatrix::DenseMatrix(const WeightMatrix& matrix, Executor& executor)
    : rows_(static_cast<int>(matrix.rows)),
      cols_(static_cast<int>(matrix.cols)),
      keeps_halves_(is_bf16(matrix)),
      products_(products_of_this_processor()) {
  const auto count = static_cast<std::size_t>(matrix.rows * matrix.cols);
  if (keeps_halves_)
    halves_.resize(count);
  else
    floats_.resize(count);
  assign(matrix, executor);
}

std::int64_t DenseMatrix::bytes_of(std::int64_t rows, std::int64_t cols, bool halves) {
  return rows * cols * (halves ? 2 : 4);
}

std::int64_t DenseMatrix::bytes_of(const WeightMatrix& matrix) {
  return bytes_of(matrix.rows, matrix.cols, is_bf16(matrix));
}

bool DenseMatrix::is_like(const WeightMatrix& matrix) const {
  return matrix.rows == rows_ && matrix.cols == cols_ && is_bf16(matrix) == keeps_halves_;
}

void DenseMatrix::assign(const WeightMatrix& matrix, Executor& executor) {
  parallel_for(executor, rows_, [&](int row, int) {
    const std::ptrdiff_t at = std::ptrdiff_t{row} * cols_;
    if (!keeps_halves_) return decode_row(matrix, row, floats_.data() + at);
    const std::byte* const from = matrix.codes + row * matrix.row_stride;
    for (int i = 0; i < cols_; ++i)
      halves_[static_cast<std::size_t>(at + i)] = load<std::uint16_t>(from + i * matrix.col_stride);
  });
}

std::size_t DenseMatrix::scratch_floats(int workers) const {
  return keeps_halves_ ? static_cast<std::size_t>(workers) * kTaskRows * static_cast<std::size_t>(cols_) : 0;
}

void DenseMatrix::read(int row, float* out) const {
  const std::uint16_t* const from = halves_.data() + std::ptrdiff_t{row} * cols_;
  for (int i = 0; i < cols_; ++i) out[i] = format::bf16_to_float(from[i]);
}

void DenseMatrix::multiply(const float* x, int tokens, Executor& executor, float* scratch, float* out) const {
  const std::ptrdiff_t width = cols_;
  parallel_for(executor, (rows_ + kTaskRows - 1) / kTaskRows, [&](int task, int worker) {
    const int first = task * kTaskRows, count = std::min(kTaskRows, rows_ - first);
    const float* weights;
    if (keeps_halves_) {
      float* const decoded = scratch + worker * kTaskRows * width;
      for (int row = 0; row < count; ++row) read(first + row, decoded + row * width);
      weights = decoded;
    } else {
      weights = floats_.data() + first * width;
    }
    for (int token = 0; token < tokens; ++token)
      products_(x + token * width, weights, count, cols_, out + std::ptrdiff_t{token} * rows_ + first);
  });
}

}  // namespace sluice
