// SPDX-License-Identifier: Apache-2.0
// From a plan to a layer: reads every tensor that the plan names, and refuses what is missing, misshapen or
// left over. Weights stay where they are in the file; ggml's order of dimensions ends here.
#pragma once

#include "checkpoint/gguf_plan.h"
#include "checkpoint/layer_builder.h"

namespace sluice::checkpoint {

/// Throws corrupt_file or unsupported.
LayerParts build_gguf_layer(const GgufFiles& files, const GgufLayerPlan& plan, Depth depth);

/// Bytes of the layer's tensors in the files.
std::int64_t gguf_layer_bytes(const GgufFiles& files, int layer);

}  // namespace sluice::checkpoint
