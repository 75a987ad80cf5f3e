// SPDX-License-Identifier: Apache-2.0
// Backends and devices that do not exist, for asking the oracle about them.
#pragma once

#include "activation/activation.h"
#include "core/devices.h"
#include "experts/backend.h"
#include "format/formats.h"
#include "oracle/oracle.h"

namespace sluice::invented {

template <int kMicroseconds>
double cost(const ExpertsSpec&, const DeviceFacts&, int tokens) {
  return kMicroseconds * static_cast<double>(tokens);
}

inline constexpr Kernel kSlow[] = {
    {.name = "plain", .tokens = {}, .estimate_us = cost<10>, .workspace_bytes = nullptr, .run = nullptr}};
/// gemv up to 16 tokens at 1 us each, mma above at 3.
inline constexpr Kernel kFast[] = {
    {.name = "gemv", .tokens = {1, 16}, .estimate_us = cost<1>, .workspace_bytes = nullptr, .run = nullptr},
    {.name = "mma",
     .tokens = {17, 1 << 30},
     .estimate_us = cost<3>,
     .workspace_bytes = nullptr,
     .run = nullptr}};
inline constexpr Kernel kFewTokens[] = {kFast[0]};

inline std::span<const Kernel> slow() { return kSlow; }
inline std::span<const Kernel> fast() { return kFast; }
inline std::span<const Kernel> few_tokens() { return kFewTokens; }
inline std::span<const Kernel> not_built() { return {}; }

/// Everything the tests' specs ask for.
inline Capability everything_on_cpu() {
  return {.device = DeviceKinds::of<device::Cpu>(),
          .weights = Formats::everything(),
          .activations = Activations::everything(),
          .features = Features::everything(),
          .integer_groups = {.multiple = 1, .whole_row = true}};
}

inline Backend backend(std::string_view name, Capability can, std::span<const Kernel> (*kernels)() = slow) {
  return {.name = name, .can = can, .pack = nullptr, .packed_bytes = nullptr, .kernels = kernels};
}

inline DeviceFacts cpu() {
  return {.kind = DeviceKinds::of<device::Cpu>(),
          .name = "a processor",
          .has = InstructionList::set<instruction::Avx2, instruction::Fma>()};
}

inline DeviceFacts card() {
  return {.kind = DeviceKinds::of<device::Cuda>(),
          .name = "a card",
          .has = InstructionList::set<instruction::CpAsync, instruction::MmaBf16>()};
}

/// gpt-oss-20b's shape.
inline LayerSpec layer() {
  const Format mxfp4 = Formats::of<format::Mxfp4>();
  return {.routed = {.hidden = 2880,
                     .intermediate = 2880,
                     .experts = 32,
                     .local_experts = 32,
                     .top_k = 4,
                     .formats = {mxfp4, mxfp4, mxfp4},
                     .activation = Activations::of<activation::Silu>(),
                     .params = {.limit = 7, .slope = 1.702f, .shift = 1},
                     .gate_up_bias = true,
                     .down_bias = true},
          .router = {.score = *Score::parse("softmax_selected"), .experts = 32, .top_k = 4, .bias = true}};
}

/// Nothing but a shape: bf16, no bias, no limit.
inline LayerSpec plain_layer() {
  LayerSpec spec = layer();
  const Format bf16 = Formats::of<format::Bf16>();
  spec.routed.formats = {bf16, bf16, bf16};
  spec.routed.params = {};
  spec.routed.gate_up_bias = spec.routed.down_bias = false;
  return spec;
}

/// The same with a shared expert of half the width.
inline LayerSpec with_shared(LayerSpec spec) {
  ExpertsSpec shared = spec.routed;
  shared.experts = shared.local_experts = shared.top_k = 1;
  shared.intermediate = 1440;
  spec.shared = SharedSpec{.experts = shared};
  return spec;
}

}  // namespace sluice::invented
