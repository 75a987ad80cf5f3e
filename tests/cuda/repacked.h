// SPDX-License-Identifier: Apache-2.0
// A layer of one expert, repacked.
#pragma once

#include <optional>
#include <vector>

#include "activation/activation.h"
#include "experts/cuda/common/column_order.h"
#include "experts/cuda/common/repack.h"
#include "format/formats.h"
#include "sluice/spec.h"

namespace sluice::cuda {

/// Of the list, those for which it is true.
template <class Condition>
std::vector<Format> formats_where(Condition condition) {
  std::vector<Format> all;
  Formats::everything().each([&](Format format) {
    if (condition(format)) all.push_back(format);
  });
  return all;
}

inline ExpertsSpec spec_of(Format format, int hidden, int intermediate, bool gated) {
  ExpertsSpec spec{
      .hidden = hidden,
      .intermediate = intermediate,
      .experts = 1,
      .local_experts = 1,
      .top_k = 1,
      .formats = {.gate = gated ? std::optional(format) : std::nullopt, .up = format, .down = format},
      .activation = gated ? Activations::of<activation::Silu>() : Activations::of<activation::Relu2>(),
      .gate_up_bias = true,
      .down_bias = true};
  return spec;
}

inline LayerSpec layer_of(const ExpertsSpec& spec) {
  return {.routed = spec, .router = {.score = *Score::parse("softmax"), .experts = 1, .top_k = 1}};
}

inline std::vector<std::byte> repacked(const ExpertsSpec& spec, const ExpertWeights& expert) {
  const ExpertLayout layout = expert_layout(spec, packed_columns(spec, {&expert, 1}));
  std::vector<std::byte> memory(static_cast<std::size_t>(layout.bytes), std::byte{0xA5});
  const auto team = make_thread_team(2);
  repack(spec, layout, expert, memory.data(), *team);
  return memory;
}

}  // namespace sluice::cuda
