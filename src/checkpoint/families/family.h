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

/// Names below the block's prefix, without ".weight" unless said otherwise. Empty: the family has no such
/// tensor.
struct BlockNames {
  std::string_view router = "gate";
  std::string_view router_bias = {};     // whole name: "router.bias"
  std::string_view selection_bias = {};  // whole name: "gate.bias"
  std::string_view expert_scale = {};    // whole name: "router.per_expert_scale"
  std::string_view token_table = {};     // whole name: "gate.tid2eid"
  std::string_view expert = "experts.{}";
  std::string_view shared = "shared_experts";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
};

struct LayerBlueprint;
using ReadExperts = std::vector<ExpertWeights> (*)(TensorReader&, const LayerBlueprint&, const Quantisation&);

using ReadRouterWeight = WeightMatrix (*)(TensorReader&, const LayerBlueprint&);

/// Each expert has modules of its own: `expert`.gate and so on.
std::vector<ExpertWeights> read_separate_experts(TensorReader&, const LayerBlueprint&, const Quantisation&);
/// All experts in one stack, gate and up rows taking turns, with biases (gpt-oss).
std::vector<ExpertWeights> read_interleaved_stack(TensorReader&, const LayerBlueprint&, const Quantisation&);
/// A stack each for gate, up and down: [experts, outputs, inputs] (Step).
std::vector<ExpertWeights> read_separate_stacks(TensorReader&, const LayerBlueprint&, const Quantisation&);
/// Gate and up in one stack `up`, [experts, 2 intermediate, hidden], gate rows first (Granite, Qwen3.5).
std::vector<ExpertWeights> read_fused_stacks(TensorReader&, const LayerBlueprint&, const Quantisation&);
/// The same transposed: [experts, hidden, 2 intermediate] and [experts, intermediate, hidden] (Llama-4).
std::vector<ExpertWeights> read_transposed_stacks(TensorReader&, const LayerBlueprint&, const Quantisation&);

struct SharedBlueprint {
  int intermediate = 0;
  ActivationParams params = {};
  std::string_view gate = {}, up = {}, down = {};  // names, where they are not those of the routed experts
  bool gate_in_up = false;                         // `up` holds the gate's rows first
  std::string_view sigmoid_gate = {};              // whole name: "shared_expert_gate.weight"
};

/// The projections around latent experts.
struct LatentBlueprint {
  int width = 0;
  std::string_view in = {}, out = {};  // modules
  std::string_view norm = {};          // whole name; empty: no norm
  float norm_epsilon = 0;
};

struct LayerBlueprint {
  int layer = 0;
  std::string block = {};  // "model.layers.3.mlp.": everything below belongs to the layer, and must be used
  // Prefixes below `block` to which that applies where not all below the block is the layer's ("moe.").
  std::vector<std::string_view> parts = {};
  BlockNames names = {};
  int hidden = 0;
  int intermediate = 0;
  RouterSpec router;  // with experts and top_k
  Activation activation;
  ActivationParams params = {};
  bool weight_on_input = false;
  std::optional<SharedBlueprint> shared = {};
  std::optional<LatentBlueprint> latent = {};
  int vocabulary = 0;                             // rows of the token table
  std::vector<std::string_view> not_needed = {};  // whole names that may be there and have no use
  ReadRouterWeight read_router_weight = nullptr;  // null: `names.router`, as it is
  ReadExperts read_experts = read_separate_experts;

  /// Prefixes of whole names below which every tensor is the layer's.
  std::vector<std::string> whole_parts() const;
};

struct Blueprint {
  int layers = 0;  // of the whole model
  std::vector<LayerBlueprint> moe_layers = {};
  Quantisation quantisation = {};
  std::vector<std::string> notes = {};
};

/// What a family reads.
struct FamilyInput {
  Config config;                       // config.json
  std::optional<Config> modelopt;      // "quantization" of hf_quant_config.json, where config.json has none
  const ModelFiles& files;             // to see which names there are
  std::optional<Config> wrapper = {};  // the whole file, where `config` is its text_config
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
extern const Family kDeepseekV2, kDeepseekV3, kDeepseekV32, kKimiK2, kKimiK25;
extern const Family kDeepseekV41;
extern const Family kGlm4Moe, kGlm4MoeLite, kGlmMoeDsa, kGlm5Next, kGlm5NextText;
extern const Family kQwen2Moe, kQwen3Next, kQwen35Moe, kQwen35MoeText;
extern const Family kOlmoe;
extern const Family kGraniteMoe, kGraniteMoeShared, kGraniteMoeHybrid;
extern const Family kMinimaxM2, kMinimaxM3, kMinimaxM3Vl;
extern const Family kStep3p5, kStep3p7;
extern const Family kBailingMoeV2, kBailingMoeV3;
extern const Family kExaoneMoe;
extern const Family kErnie45Moe;
extern const Family kLlama4, kLlama4Text;
extern const Family kNemotronH;
extern const Family kGemma4, kGemma4Text;
extern const Family kKimiK3, kKimiLinear;
/// For a model_type that is in no other's: conventional names, or nothing.
extern const Family kGeneric;
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

/// Experts and experts a token, checked against each other. A file that transformers 5 saved may have
/// num_local_experts in place of `experts_key`.
RouterSpec read_router(const Config& config, std::string_view experts_key, Score score);

}  // namespace sluice::checkpoint
