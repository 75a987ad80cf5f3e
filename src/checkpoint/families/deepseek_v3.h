// SPDX-License-Identifier: Apache-2.0
// What DeepSeek-V3 and the models built like it share.
#pragma once

#include "checkpoint/families/common.h"

namespace sluice::checkpoint {

/// Sizes, router, activation and shared expert of a layer under DeepSeek-V3's keys and names.
LayerBlueprint deepseek_v3_layer(const Config& config);

}  // namespace sluice::checkpoint
