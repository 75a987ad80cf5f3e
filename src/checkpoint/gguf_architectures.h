// SPDX-License-Identifier: Apache-2.0
// What llama.cpp's architectures with experts compute where no key says it. Facts of ggml-org/llama.cpp,
// src/models/*.cpp (load_arch_hparams and the call of build_moe_ffn) and src/llama-graph.cpp.
#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/gguf_plan.h"

namespace sluice::checkpoint {

/// Whether a key decides.
enum class By : std::uint8_t {
  architecture,  // no key is read
  key_or_this,   // the key, or what the table says
  key,           // the key must be there
};

/// Where the width of routed experts is.
enum class Wide : std::uint8_t {
  expert,           // expert_feed_forward_length
  dense,            // feed_forward_length
  expert_or_dense,  // the first, or the second
  expert_or_part,   // the first, or feed_forward_length divided by the experts of a token
};

/// Where the width of the shared expert is.
enum class SharedWide : std::uint8_t {
  none,                // the architecture has no shared expert
  routed,              // that of a routed one
  count_times_routed,  // expert_shared_count times that of a routed one
  own,                 // expert_shared_feed_forward_length; 0 or absent: no shared expert
  own_or_dense,        // the same, or feed_forward_length
  count_times_own,     // expert_shared_count times own, or routed
};

enum class Clamp : std::uint8_t {
  none,     // a limit in the file is refused
  gpt_oss,  // constants: limit 7, slope 1.702, shift 1
  before,  // swiglu_clamp_exp, which must be there, on gate and up, then SiLU; for the shared expert the same
           // unless it has its own
  after_silu,  // SiLU, then swiglu_clamp_exp on it and up
};

struct Architecture {
  std::string_view name;    // general.architecture
  std::string_view family;  // model_type of config.json
  By score_by = By::architecture;
  std::string_view score = "softmax";
  By renormalise_by = By::architecture;
  bool renormalise = false;
  bool scale_key = false;  // expert_weights_scale is read
  Wide wide = Wide::expert;
  SharedWide shared = SharedWide::none;
  Has shared_gate = Has::no;
  Has selection_bias = Has::no;
  Has biases = Has::no;
  Clamp clamp = Clamp::none;
  bool weight_on_input = false;
  bool layers_by_tensors = false;  // which layers have experts is not in the keys
  bool step = false;               // interleave_moe_layer_step is read
  bool hash_layers = false;        // hash_layer_count is read
};

/// Null when it is not in the table.
const Architecture* find_architecture(std::string_view name);

/// Architectures whose experts are known to be something that keys do not say: why they are not read, or
/// empty.
std::string_view why_not_read(std::string_view name);

/// For an architecture that is not in the table: everything by keys, plain SiLU.
extern const Architecture kUnknownArchitecture;

}  // namespace sluice::checkpoint
