// SPDX-License-Identifier: Apache-2.0
// What a tensor of an adapter belongs to, from its name alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::checkpoint {

enum class LoraTarget : std::uint8_t {
  elsewhere,  // attention, embeddings, a dense layer's block: not of an MoE block
  gate,       // of an expert or a shared expert
  up,
  down,
  stack,        // "experts": the parameter that was wrapped last
  inner_stack,  // "experts.base_layer": the one wrapped before
  router,
  unknown,  // in an MoE block, and nothing of it
};

struct LoraName {
  std::string module;     // "model.layers.3.mlp.experts.7.gate_proj", without "base_layer"
  std::string_view leaf;  // "lora_A.weight"
  LoraTarget target = LoraTarget::elsewhere;
  int layer = -1;
  int expert = -1;  // of gate, up and down; -1: the shared expert
};

/// `name` of adapter_model.safetensors. It must outlive the result.
LoraName parse_lora_name(std::string_view name);

}  // namespace sluice::checkpoint
