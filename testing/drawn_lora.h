// SPDX-License-Identifier: Apache-2.0
// Random adapters for drawn layers (testing/drawn_layer.h), exact or noisy as the layer is.
//
// Two adapters, the second with half the rank, without a gate for every third expert and without a down for
// every fourth. Each matrix is drawn a type, and whether it is stored by rows or by columns. Tokens take the
// first, the second and none in turn. Exact deltas keep the gates of exact layers 0 or at least 50.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/lora.h"
#include "testing/drawn_layer.h"

namespace sluice::testing {

struct DrawnLora {
  std::vector<LoraAdapter> adapters = {};
  std::vector<std::int32_t> ids = {};  // [tokens]

  std::vector<const LoraAdapter*> pointers() const;
};

/// Empty where the spec has no lora_rank. `tokens` ids: 0, 1, -1, 0, ...
DrawnLora draw_lora(const LayerSpec& spec, Numbers numbers, int tokens, std::uint64_t seed);

/// W + scale * B A as float32; [rows, cols].
std::vector<float> merged(const WeightMatrix& weight, const LoraDelta& delta);

}  // namespace sluice::testing
