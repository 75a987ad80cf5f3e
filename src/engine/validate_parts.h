// SPDX-License-Identifier: Apache-2.0
// What validate(LayerSpec, LayerWeights) checks, of one part of a layer: an update replaces one. Throws
// invalid_argument "bad_weights".
#pragma once

#include "sluice/spec.h"

namespace sluice {

void validate_routed(const LayerSpec& spec, int local, const ExpertWeights& weights);
void validate_shared(const LayerSpec& spec, const ExpertWeights& weights, const VectorView& gate);
void validate_router(const LayerSpec& spec, const RouterWeights& weights);
void validate_latent(const LayerSpec& spec, const std::optional<LatentWeights>& weights);

}  // namespace sluice
