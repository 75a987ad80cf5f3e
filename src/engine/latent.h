// SPDX-License-Identifier: Apache-2.0
// The projections around latent experts, in float32: z = W_in x before the experts, W_out n behind them,
// where n is their sum or its RMS norm. No number of a token depends on another token or on the number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/dense_matrix.h"
#include "sluice/executor.h"
#include "sluice/spec.h"

namespace sluice {

class Latent {
 public:
  Latent(const LatentSpec& spec, const LatentWeights& weights, Executor& executor);

  /// Replaces all numbers, by those of weights that is_like says yes to.
  void assign(const LatentWeights& weights, Executor& executor);
  bool is_like(const LatentWeights& weights) const;
  std::int64_t bytes() const;
  static std::int64_t bytes_of(const LatentWeights& weights);

  /// Floats of scratch for either call.
  std::size_t scratch_floats(int workers) const;
  /// x [tokens, hidden] to out [tokens, latent].
  void to_latent(const float* x, int tokens, Executor& executor, float* scratch, float* out) const;
  /// sums [tokens, latent] to out [tokens, hidden]. `normed`, [tokens, latent], is not the same as sums; it
  /// is written where there is a norm.
  void from_latent(const float* sums, int tokens, Executor& executor, float* scratch, float* normed,
                   float* out) const;

 private:
  DenseMatrix in_, out_;
  std::optional<float> epsilon_;
  std::vector<float> norm_;  // [latent], or empty
};

}  // namespace sluice
