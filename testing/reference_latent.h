// SPDX-License-Identifier: Apache-2.0
// The definition of the projections around latent experts, in double: z = W_in x, and W_out n of the experts'
// sum y, where n is y or y / sqrt(mean of y^2 + epsilon) * norm.
//
// A magnitude is how large the numbers were whose roundings a result carries, its operands' included, as in
// reference::Observed.
#pragma once

#include <span>
#include <vector>

#include "sluice/spec.h"

namespace sluice::testing {

/// Of all tokens, one row behind the other.
struct Measured {
  std::vector<double> values, magnitude;
  bool together =
      false;  // what one is off by, all others may be: as where a step of an intermediate is taken
};

/// x [tokens, hidden], which came without error, to [tokens, latent].
Measured to_latent(const LatentWeights& weights, std::span<const double> x);

/// Sums [tokens, latent] to [tokens, hidden].
Measured from_latent(const LatentSpec& spec, const LatentWeights& weights, const Measured& sums);

}  // namespace sluice::testing
