// SPDX-License-Identifier: Apache-2.0
// Families whose layers differ in names and layout only, described as data. Only the sample writers include
// this.
#pragma once

#include <string_view>

#include "testing/sample_flavours.h"

namespace sluice::testing::sample {

/// How the routed experts are stored.
enum class Stored : std::uint8_t {
  modules,     // each expert's matrices alone
  stacks,      // a tensor each for gate, up and down: [experts, outputs, inputs]
  fused,       // gate and up in one tensor, gate rows first
  transposed,  // the same as [experts, inputs, outputs]
};

/// Names are whole from `layer` on, {} in `experts` is the expert's number. Null: the family has none.
struct Block {
  const char* layer = "model.layers.{}.mlp.";
  const char* router = "gate.weight";
  const char* bias = "gate.e_score_correction_bias";
  bool bias_is_a_row = false;  // [1, experts]
  const char* experts = "experts.{}.";
  Stored stored = Stored::modules;
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared = "shared_experts.";
  int shared_width = 96;
  const char* shared_gate = "gate_proj";
  const char* shared_up = "up_proj";
  const char* shared_down = "down_proj";
  const char* sigmoid_gate = nullptr;
  const char* suffix = ".weight";      // of stacks
  const char* router_scale = nullptr;  // Gemma-4: [hidden]
  const char* expert_scale = nullptr;  // [experts]
  const char* norm = nullptr;          // [hidden]
  const char* latent_in = nullptr;     // modules around latent experts
  const char* latent_out = nullptr;
  const char* latent_norm = nullptr;  // [latent]
  double pre_activation = 2;          // standard deviation of gate and up
  const char* config = nullptr;       // config.json, with the sizes of the flavour
};

/// Flavours made of blocks.
std::span<const Flavour> block_flavours();

}  // namespace sluice::testing::sample
