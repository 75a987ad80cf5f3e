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

/// The matrix of one module, in the scheme that the configuration gives it. Throws unsupported for a scheme
/// of stacks only.
WeightMatrix read_module(TensorReader& reader, const Quantisation& quantisation, const std::string& module,
                         MatrixShape shape);

/// Gate and up of a matrix that holds both, gate rows first. Throws unsupported when a block of scales has
/// rows of both.
struct GateAndUp {
  WeightMatrix gate, up;
};
GateAndUp halves_of(const WeightMatrix& both, const ModelFiles& files, const std::string& module);

}  // namespace sluice::checkpoint
