// SPDX-License-Identifier: Apache-2.0
// A family turns a configuration into blueprints of its MoE layers: numbers, and where the tensors are. It is
// data; what reads tensors by it (layer_builder.cpp) is the same for all. See docs/adding/family.md.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/model_files.h"
#include "checkpoint/quantisation.h"
#include "sluice/routing.h"
#include "sluice/spec.h"

namespace sluice::checkpoint {

/// Names below the block's prefix, without ".weight". Empty: the family has no such tensor.
struct BlockNames {
  std::string_view router = "gate";
  std::string_view router_bias = {};     // whole name: "router.bias"
  std::string_view selection_bias = {};  // whole name: "gate.bias"
  std::string_view token_table = {};     // whole name: "gate.tid2eid"
  std::string_view expert = "experts.{}";
  std::string_view shared = "shared_experts";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
};

struct LayerBlueprint;
using ReadExperts = std::vector<ExpertWeights> (*)(TensorReader&, const LayerBlueprint&, const Quantisation&);

/// Each expert has modules of its own: `expert`.gate and so on.
std::vector<ExpertWeights> read_separate_experts(TensorReader&, const LayerBlueprint&, const Quantisation&);
/// All experts in one stack, gate and up rows taking turns, with biases (gpt-oss).
std::vector<ExpertWeights> read_interleaved_stack(TensorReader&, const LayerBlueprint&, const Quantisation&);

struct SharedBlueprint {
  int intermediate = 0;
  ActivationParams params = {};
};

struct LayerBlueprint {
  int layer = 0;
  std::string block;  // "model.layers.3.mlp.": everything below belongs to the layer, and must be used
  BlockNames names = {};
  int hidden = 0;
  int intermediate = 0;
  RouterSpec router;  // with experts and top_k
  Activation activation;
  ActivationParams params = {};
  std::optional<SharedBlueprint> shared = {};
  int vocabulary = 0;                             // rows of the token table
  std::vector<std::string_view> not_needed = {};  // whole names that may be there and have no use
  ReadExperts read_experts = read_separate_experts;
};

struct Blueprint {
  int layers = 0;  // of the whole model
  std::vector<LayerBlueprint> moe_layers = {};
  Quantisation quantisation = {};
  std::vector<std::string> notes = {};
};

/// What a family reads.
struct FamilyInput {
  Config config;                   // config.json
  std::optional<Config> modelopt;  // "quantization" of hf_quant_config.json, where config.json has none
  const ModelFiles& files;         // to see which names there are
};

struct Family {
  std::string_view model_type;  // as config.json spells it
  Blueprint (*read)(const FamilyInput&);
};

/// The families, in one place (families.cpp).
std::span<const Family* const> families();

namespace families_list {
extern const Family kGptOss;
extern const Family kDeepseekV4;
extern const Family kMixtral;
extern const Family kQwen3Moe;
}  // namespace families_list

// What most families read the same way.

/// A name of a closed list that this code knows to be in it.
template <class Name>
Name known(std::string_view name) {
  return *Name::parse(name);
}

/// quantization_config of config.json, or ModelOpt's file.
Quantisation read_quantisation(const FamilyInput& input);

/// `hidden_act` as an activation. Throws corrupt_file (unknown_activation).
Activation read_activation(const Config& config, std::string_view key = "hidden_act");

/// Throws unsupported when the configuration has a limit on activations under a key that the family does not
/// define: a limit that nobody applies makes outputs wrong in silence.
void refuse_unknown_limits(const Config& config, std::initializer_list<std::string_view> known_keys);

/// Experts and experts a token, checked against each other.
RouterSpec read_router(const Config& config, std::string_view experts_key, Score score);

}  // namespace sluice::checkpoint
