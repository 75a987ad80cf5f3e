// SPDX-License-Identifier: Apache-2.0
// What every CPU backend can do: the kernels are one template, so the backends differ in instructions and in
// what those cost.
#pragma once

#include <algorithm>
#include <utility>

#include "experts/backend.h"
#include "experts/cpu/common/estimate.h"
#include "experts/cpu/common/forward.h"
#include "experts/cpu/common/kernel.h"
#include "experts/cpu/common/pack.h"

namespace sluice::cpu {

inline constexpr NameSet<struct FormatTag> kWeights =
    Formats::set<format::F32, format::F16, format::Bf16, format::Mxfp4, format::Nvfp4, format::Fp8Block128,
                 format::Fp8Channel, format::Fp8Tensor, format::Mxfp8, format::Int2, format::Int3,
                 format::Int4, format::Int5, format::Int6, format::Int7, format::Int8, format::Q4_0,
                 format::Q8_0, format::Q4K, format::Q5K, format::Q6K>();

inline constexpr IntegerGroups kIntegerGroups{.multiple = 1, .whole_row = true};

inline constexpr FeatureSet kFeatures =
    Features::set<feature::GateUpBias, feature::DownBias, feature::Limit, feature::Slope, feature::Shift,
                  feature::Saturation, feature::ExpertMap, feature::WeightOnInput, feature::SharedExpert,
                  feature::MixedFormats, feature::MixedGateUp, feature::MixedExperts, feature::ZeroPoints,
                  feature::ActOrder, feature::Lora, feature::Latent>();

inline constexpr NameSet<struct CallModeTag> kCalls =
    CallModes::set<call::Contiguous, call::Batched, call::BatchInvariant, call::Update>();

/// A CPU backend, from what it differs in. `Of` has
///
///   kName, kUses         as in Backend and Capability
///   kArithmetic          what its products cost, and the lanes that it packs for
///   kOfFewTokens         the same of an expert's few tokens, where those are multiplied otherwise: the
///                        cheaper one is what a call costs
///   kWorkspaceBytes      workspace_bytes, or that of rows which are also kept as bf16
///   table()              its kernels; null in a build without them
///   backend()            the object that declare makes
template <class Of>
struct Declared {
  static std::unique_ptr<PackedExperts> pack(const PackInput& input) {
    return cpu::pack(Of::backend(), Of::kArithmetic.lanes, input);
  }
  static std::unique_ptr<PackedExperts> adopt(const PackInput& input, PackedBytes bytes) {
    return cpu::adopt(Of::backend(), Of::kArithmetic.lanes, input, std::move(bytes));
  }
  static std::int64_t packed_bytes(const ExpertsSpec& spec) {
    return cpu::packed_bytes(spec, Of::kArithmetic.lanes);
  }
  static double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
    const double us = cpu::estimate_us(spec, device, tokens, Of::kArithmetic);
    if constexpr (requires { Of::kOfFewTokens; })
      return std::min(us, cpu::estimate_us(spec, device, tokens, Of::kOfFewTokens));
    return us;
  }
  static void run(const PackedExperts& packed, const Forward& call) {
    cpu::forward(*Of::table(), packed, call);
  }

  static constexpr Kernel kKernels[] = {
      {.name = "grouped",
       .tokens = {},
       .estimate_us = estimate_us,
       .workspace_bytes = Of::kWorkspaceBytes,
       .run = run},
  };
  static std::span<const Kernel> kernels() {
    if (Of::table() == nullptr) return {};
    return kKernels;
  }
};

template <class Of>
constexpr Backend declare() {
  using Its = Declared<Of>;
  return {.name = Of::kName,
          .can = {.device = DeviceKinds::of<device::Cpu>(),
                  .uses = Of::kUses,
                  .weights = kWeights,
                  .activations = Activations::everything(),
                  .features = kFeatures,
                  .calls = kCalls,
                  .integer_groups = kIntegerGroups},
          .pack = Its::pack,
          .packed_bytes = Its::packed_bytes,
          .kernels = Its::kernels,
          .update = update,
          .keeping = {.version = kLayoutVersion, .bytes = bytes, .adopt = Its::adopt}};
}

}  // namespace sluice::cpu
