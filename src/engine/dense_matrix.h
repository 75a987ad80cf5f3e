// SPDX-License-Identifier: Apache-2.0
// A dense matrix that every token is multiplied by: the projections around latent experts.
//
// BF16 stays BF16, because a token alone costs what is read of the weights; any other format is float32 here.
// An element of a product is summed by `dot` (router.h), so it depends neither on the other tokens nor on the
// number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/products.h"
#include "sluice/executor.h"
#include "sluice/spec.h"

namespace sluice {

class DenseMatrix {
 public:
  DenseMatrix() = default;
  DenseMatrix(const WeightMatrix& matrix, Executor& executor);

  /// Replaces the numbers by those of a matrix that is_like says yes to. They keep their address.
  void assign(const WeightMatrix& matrix, Executor& executor);
  /// The same sizes, and BF16 where this is.
  bool is_like(const WeightMatrix& matrix) const;

  int rows() const { return rows_; }
  int cols() const { return cols_; }
  std::int64_t bytes() const { return bytes_of(rows_, cols_, keeps_halves_); }
  /// What a matrix will take here.
  static std::int64_t bytes_of(const WeightMatrix& matrix);

  /// Floats of scratch that `multiply` needs.
  std::size_t scratch_floats(int workers) const;
  /// out [tokens, rows] = x [tokens, cols] times the transpose.
  void multiply(const float* x, int tokens, Executor& executor, float* scratch, float* out) const;

 private:
  static std::int64_t bytes_of(std::int64_t rows, std::int64_t cols, bool halves);
  void read(int row, float* out) const;

  int rows_ = 0, cols_ = 0;
  bool keeps_halves_ = false;
  Products products_ = nullptr;
  std::vector<std::uint16_t> halves_;  // [rows, cols], one of the two
  std::vector<float> floats_;
};

}  // namespace sluice
