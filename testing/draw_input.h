// SPDX-License-Identifier: Apache-2.0
// Hidden states for a layer of which nothing is known but its weights.
#pragma once

#include <cstdint>
#include <memory>

#include "sluice/executor.h"
#include "sluice/spec.h"
#include "testing/layer_input.h"

namespace sluice::testing {

/// Normal hidden states in BF16, and token ids where the router wants some. A layer with a limit gets them so
/// large that at least a tenth of the selected experts' gate or up values exceed it: smaller ones would not
/// tell an engine that clamps from one that does not.
LayerInput draw_layer_input(const LayerSpec& spec, const LayerWeights& weights, std::uint64_t seed,
                            const std::shared_ptr<Executor>& executor);

}  // namespace sluice::testing
