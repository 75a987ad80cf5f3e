// SPDX-License-Identifier: Apache-2.0
// The definition over a whole call, with everything a judgement needs: results in double, the magnitudes
// behind them, how often the clamp fires, and what the experts would answer without it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/executor.h"
#include "sluice/layer.h"
#include "sluice/spec.h"
#include "testing/rounding.h"

namespace sluice::testing {

struct ReferenceCall {
  const LayerSpec& spec;
  const LayerWeights& weights;
  RowsView hidden;
  Routing routing;
  std::span<const std::int32_t> expert_map = {};
  std::span<const LoraAdapter* const> adapters = {};
  std::span<const std::int32_t> adapter_ids = {};  // [tokens]; empty: none
  Executor* executor = nullptr;                    // null: on the calling thread
  Rounding rounding = Rounding::none;              // of the backend that is compared with it
};

/// All results are [tokens, hidden], those of the latent experts' sums [tokens, latent].
struct ReferenceResult {
  std::vector<double> experts_out, experts_magnitude;
  std::vector<double> block_out, block_magnitude;
  std::vector<double> latent_out = {}, latent_magnitude = {};  // empty where the experts are not latent
  std::vector<double> experts_out_without_clamp = {};          // empty when the layer has no limit
  // Shares of the routed experts' activations.
  double gate_over_limit = 0, up_over_limit = 0;
  /// ||without clamp - experts_out|| / ||experts_out|| over all tokens; 0 when the layer has no limit.
  double clamp_effect = 0;
};

ReferenceResult reference_run(const ReferenceCall& call);

}  // namespace sluice::testing
