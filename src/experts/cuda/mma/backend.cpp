// SPDX-License-Identifier: Apache-2.0
// cuda.mma: experts on any card from SM80 up. Weights stay quantised in the card's memory and become bf16
// exactly in registers; inputs and intermediates are sums of bf16 that lose nothing; sums are float32.
#include <algorithm>
#include <cmath>

#include "experts/backend.h"
#include "experts/cuda/common/layout.h"
#include "experts/cuda/mma/table.h"

namespace sluice {

extern const Backend kCudaMma;

namespace {

// What one H200 does (docs/cuda.md), within a third from 1 to 4096 tokens of gpt-oss-120b's shape.
/// Of the card's bandwidth and of its peak that products reach, one after the other.
constexpr double kShareOfBandwidth = 0.46, kShareOfPeak = 0.11;
/// A warp works through a strip alone, so a call takes at least this long for each block of 128 columns.
constexpr double kBlockUs = 0.6;
/// Starting and waiting; and the bus, which inputs and outputs cross in pageable memory.
constexpr double kFixedUs = 30, kBusGbps = 10;

std::unique_ptr<PackedExperts> pack(const PackInput& input) { return cuda::kMmaTable->pack(kCudaMma, input); }

std::int64_t packed_bytes(const ExpertsSpec& spec) {
  return cuda::expert_layout(spec).bytes * spec.local_experts;
}

double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  const double missed = std::pow(1.0 - double(spec.top_k) / spec.experts, tokens);
  const double experts = spec.local_experts * (1.0 - missed);
  const double slots = double(tokens) * spec.top_k * spec.local_experts / spec.experts;
  const cuda::ExpertLayout layout = cuda::expert_layout(spec);
  const double bytes = experts * double(layout.bytes);
  const double flops = 2 * slots * (spec.formats.gate ? 3.0 : 2.0) * spec.hidden * spec.intermediate;
  const double memory_us = 1e-3 * bytes / (kShareOfBandwidth * std::max(device.read_gbps, 1.0));
  const double arithmetic_us = 1e-3 * flops / (kShareOfPeak * std::max(device.peak_gflops, 1.0));
  const double chain_us = kBlockUs * (layout.up.k_blocks + layout.down.k_blocks);
  const double bus_us = 1e-3 * tokens * 6.0 * spec.hidden / kBusGbps;
  return kFixedUs + std::max(chain_us, memory_us + arithmetic_us) + bus_us;
}

std::size_t workspace_bytes(const PackedExperts& packed, int tokens, int workers) {
  return cuda::kMmaTable->workspace_bytes(packed, tokens, workers);
}

void run(const PackedExperts& packed, const Forward& call) { cuda::kMmaTable->run(packed, call); }

std::unique_ptr<DeviceLayer> on_device(const DeviceLayerInput& input) {
  return cuda::kMmaTable->on_device(input);
}

constexpr Kernel kKernels[] = {
    {.name = "grouped",
     .tokens = {},
     .estimate_us = estimate_us,
     .workspace_bytes = workspace_bytes,
     .run = run},
};

std::span<const Kernel> kernels() {
  if (cuda::kMmaTable == nullptr) return {};
  return kKernels;
}

}  // namespace

constinit const Backend kCudaMma{
    .name = "cuda.mma",
    .can = {.device = DeviceKinds::of<device::Cuda>(),
            .uses = InstructionList::set<instruction::CpAsync, instruction::MmaBf16>(),
            .weights =
                Formats::set<format::F16, format::Bf16, format::Mxfp4, format::Nvfp4, format::Fp8Block128,
                             format::Fp8Channel, format::Fp8Tensor, format::Mxfp8, format::Int2, format::Int3,
                             format::Int4, format::Int5, format::Int6, format::Int7, format::Int8>(),
            .activations = Activations::everything(),
            .features =
                Features::set<feature::GateUpBias, feature::DownBias, feature::Limit, feature::Slope,
                              feature::Shift, feature::Saturation, feature::ExpertMap, feature::WeightOnInput,
                              feature::SharedExpert, feature::ZeroPoints, feature::ActOrder>(),
            .calls = CallModes::set<call::Contiguous, call::Batched, call::BatchInvariant>(),
            .integer_groups = {.multiple = 32, .whole_row = true}},
    .pack = pack,
    .packed_bytes = packed_bytes,
    .kernels = kernels,
    .on_device = on_device,
};

}  // namespace sluice
