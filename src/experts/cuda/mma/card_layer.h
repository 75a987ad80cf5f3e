// SPDX-License-Identifier: Apache-2.0
// A layer's calls on tensors that are on its card.
#pragma once

#include <memory>

#include "experts/backend.h"

namespace sluice::cuda {

/// Copies to the card of the packing what the layer has beside its experts.
std::unique_ptr<DeviceLayer> on_device(const DeviceLayerInput& input);

}  // namespace sluice::cuda
