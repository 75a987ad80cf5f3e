// SPDX-License-Identifier: Apache-2.0
#include "engine/latent.h"

#include <algorithm>
#include <cmath>

#include "engine/router.h"

namespace sluice {
namespace {

/// out = x / sqrt(mean of x^2 + epsilon) * norm
void normalise(const float* x, const std::vector<float>& norm, float epsilon, float* out) {
  const int width = static_cast<int>(norm.size());
  const float mean = dot(x, x, width) / static_cast<float>(width);
  const float factor = 1.0f / std::sqrt(mean + epsilon);
  for (int i = 0; i < width; ++i) out[i] = x[i] * factor * norm[static_cast<std::size_t>(i)];
}

}  // namespace

Latent::Latent(const LatentSpec& spec, const LatentWeights& weights, Executor& executor)
    : in_(weights.in, executor),
      out_(weights.out, executor),
      epsilon_(spec.norm_epsilon),
      norm_(to_floats(weights.norm)) {}

void Latent::assign(const LatentWeights& weights, Executor& executor) {
  in_.assign(weights.in, executor);
  out_.assign(weights.out, executor);
  assign_floats(weights.norm, norm_);
}

bool Latent::is_like(const LatentWeights& weights) const {
  return in_.is_like(weights.in) && out_.is_like(weights.out) &&
         static_cast<bool>(weights.norm) == !norm_.empty();
}

std::int64_t Latent::bytes() const {
  return in_.bytes() + out_.bytes() + 4 * static_cast<std::int64_t>(norm_.size());
}

std::int64_t Latent::bytes_of(const LatentWeights& weights) {
  return DenseMatrix::bytes_of(weights.in) + DenseMatrix::bytes_of(weights.out) + 4 * weights.norm.size;
}

std::size_t Latent::scratch_floats(int workers) const {
  return std::max(in_.scratch_floats(workers), out_.scratch_floats(workers));
}

void Latent::to_latent(const float* x, int tokens, Executor& executor, float* scratch, float* out) const {
  in_.multiply(x, tokens, executor, scratch, out);
}

void Latent::from_latent(const float* sums, int tokens, Executor& executor, float* scratch, float* normed,
                         float* out) const {
  if (!epsilon_) return out_.multiply(sums, tokens, executor, scratch, out);
  const std::ptrdiff_t width = out_.cols();
  parallel_for(executor, tokens, [&](int token, int) {
    normalise(sums + token * width, norm_, *epsilon_, normed + token * width);
  });
  out_.multiply(normed, tokens, executor, scratch, out);
}

}  // namespace sluice
