// SPDX-License-Identifier: Apache-2.0
// From a blueprint to a layer: reads every tensor that the blueprint names, and refuses what is missing,
// misshapen or left over.
#pragma once

#include "checkpoint/families/family.h"
#include "checkpoint/tensor_reader.h"
#include "sluice/spec.h"

namespace sluice::checkpoint {

struct LayerParts {
  LayerSpec spec;
  LayerWeights weights;       // without an owner; at Depth::headers to look at shapes only
  int activation_scales = 0;  // tensors that scale activations, which stay unquantised here
};

/// Throws corrupt_file or unsupported.
LayerParts build_layer(TensorReader& reader, const LayerBlueprint& blueprint,
                       const Quantisation& quantisation);

}  // namespace sluice::checkpoint
