// SPDX-License-Identifier: Apache-2.0
// From a GGUF file's keys to plans of its MoE layers: the numbers, and what must be in the file.
// Architectures are a table (gguf_architectures.cpp); what the keys do not say follows from it, as llama.cpp
// has it, and is said in the notes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf_files.h"
#include "sluice/routing.h"
#include "sluice/spec.h"

namespace sluice::checkpoint {

/// What an architecture does about a tensor.
enum class Has : std::uint8_t { no, maybe, yes };

struct GgufSharedPlan {
  int intermediate = 0;
  ActivationParams params = {};
  Has sigmoid_gate = Has::no;
};

struct GgufLayerPlan {
  int layer = 0;
  int hidden = 0;
  int intermediate = 0;
  RouterSpec router;  // bias, selection_bias and by_token_id follow from the tensors
  Activation activation;
  ActivationParams params = {};
  bool weight_on_input = false;
  Has selection_bias = Has::no;
  Has biases = Has::no;  // of the router and the experts
  bool by_token_id = false;
  std::optional<GgufSharedPlan> shared = {};
};

struct GgufPlan {
  std::string family;  // as config.json would spell it, or "gguf"
  std::string architecture;
  int layers = 0;  // of the whole model, without those for predicting several tokens
  std::vector<GgufLayerPlan> moe_layers = {};
  std::vector<std::string> notes = {};
};

/// Throws corrupt_file, or unsupported for an architecture that is not known and whose keys leave open what
/// it computes.
GgufPlan plan_gguf(const GgufFiles& files);

}  // namespace sluice::checkpoint
