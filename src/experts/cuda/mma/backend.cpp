// SPDX-License-Identifier: Apache-2.0
// cuda.mma: experts on any card from SM80 up. Weights stay quantised in the card's memory and become bf16
// exactly in registers; inputs and intermediates are sums of bf16 that lose nothing; sums are float32.
// cuda.decode is that with two kernels for few tokens beside, which compute a layer of quantised weights in
// one launch on cards with bulk copies. The kernels sum in different orders, so a token's bits depend on
// which of them its batch takes. cuda.rounded is cuda.mma with the intermediate rounded to bf16, as models
// keep it: the down product then multiplies it once and not as three bf16. Its calls of many tokens leave
// sums of rows to the tensor cores, so a token's bits depend on how many there are
// (docs/decisions/031-sums-of-rows.md).
#include <algorithm>
#include <cmath>

#include "experts/backend.h"
#include "experts/cuda/common/layout.h"
#include "experts/cuda/mma/small.h"
#include "experts/cuda/mma/table.h"

namespace sluice {

extern const Backend kCudaMma;
extern const Backend kCudaDecode;
extern const Backend kCudaRounded;

namespace {

// What one H200 does (docs/performance.md), within 45 % from 4 to 16384 tokens of gpt-oss-120b's shape
// (a call through the host has the bus besides).
/// Of the card's bandwidth and of its peak that products reach, one after the other.
constexpr double kShareOfBandwidth = 0.46, kShareOfPeak = 0.19;
/// On warpgroups, and with a rounded intermediate (of storages with their scales in the weights; others take
/// up to a quarter longer).
constexpr double kShareOfWarpgroups = 0.28, kShareOfRounded = 0.6;
/// A warp works through a strip alone, so a call takes at least this long for each block of 128 columns.
constexpr double kBlockUs = 0.6;
/// Starting and waiting; and the bus, which inputs and outputs cross in pageable memory.
constexpr double kFixedUs = 30, kBusGbps = 10;

/// The one launch, within a quarter from 1 to 64 tokens on three shapes.
constexpr double kOneLaunchShareOfBandwidth = 0.62, kOneLaunchUs = 12;

std::unique_ptr<PackedExperts> pack(const PackInput& input) { return cuda::kMmaTable->pack(kCudaMma, input); }

std::unique_ptr<PackedExperts> pack_decode(const PackInput& input) {
  return cuda::kMmaTable->pack(kCudaDecode, input);
}

std::unique_ptr<PackedExperts> pack_rounded(const PackInput& input) {
  return cuda::kMmaTable->pack(kCudaRounded, input);
}

std::int64_t packed_bytes(const ExpertsSpec& spec) {
  return cuda::expert_layout(spec).bytes * spec.local_experts;
}

/// Bytes of the experts that so many tokens are expected to name.
double touched_bytes(const ExpertsSpec& spec, int tokens) {
  const double missed = std::pow(1.0 - double(spec.top_k) / spec.experts, tokens);
  return spec.local_experts * (1.0 - missed) * double(cuda::expert_layout(spec).bytes);
}

double bus_us(const ExpertsSpec& spec, int tokens) { return 1e-3 * tokens * 6.0 * spec.hidden / kBusGbps; }

/// Storages that warpgroup_kernel has kernels for.
constexpr bool has_warpgroup_kernels(cuda::Storage storage) {
  return cuda::value_bits(storage) < 16 && !cuda::has_factors(storage);
}

/// Of many tokens, quantised weights and gated experts on SM90 (takes_warpgroups). Without them a rounded
/// intermediate saves a third of the products and more.
double share_of_peak(const ExpertsSpec& spec, const DeviceFacts& device, int tokens, bool rounded) {
  const cuda::ExpertLayout layout = cuda::expert_layout(spec);
  const bool warpgroups = device.has.has(InstructionList::of<instruction::Wgmma>()) &&
                          tokens > cuda::kFewTokens && spec.formats.gate &&
                          has_warpgroup_kernels(layout.up.storage) &&
                          has_warpgroup_kernels(layout.down.storage);
  if (warpgroups) return rounded ? kShareOfRounded : kShareOfWarpgroups;
  return rounded ? 1.5 * kShareOfPeak : kShareOfPeak;
}

double estimate(const ExpertsSpec& spec, const DeviceFacts& device, int tokens, bool rounded) {
  const double slots = double(tokens) * spec.top_k * spec.local_experts / spec.experts;
  const cuda::ExpertLayout layout = cuda::expert_layout(spec);
  const double flops = 2 * slots * (spec.formats.gate ? 3.0 : 2.0) * spec.hidden * spec.intermediate;
  const double memory_us =
      1e-3 * touched_bytes(spec, tokens) / (kShareOfBandwidth * std::max(device.read_gbps, 1.0));
  const double arithmetic_us =
      1e-3 * flops / (share_of_peak(spec, device, tokens, rounded) * std::max(device.peak_gflops, 1.0));
  const double chain_us = kBlockUs * (layout.up.k_blocks + layout.down.k_blocks);
  return kFixedUs + std::max(chain_us, memory_us + arithmetic_us) + bus_us(spec, tokens);
}

double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  return estimate(spec, device, tokens, false);
}

double estimate_rounded_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  return estimate(spec, device, tokens, true);
}

double estimate_decode_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  const cuda::ExpertLayout layout = cuda::expert_layout(spec);
  const double grouped = estimate_us(spec, device, tokens);
  // The build has the kernel for SM90 alone, which wgmma tells from newer ones.
  if (!device.has.has(InstructionList::of<instruction::Wgmma>()) ||
      !cuda::is_small(layout, {.tokens = tokens, .top_k = spec.top_k, .local_experts = spec.local_experts}))
    return grouped;
  const double one =
      kOneLaunchUs + bus_us(spec, tokens) +
      1e-3 * touched_bytes(spec, tokens) / (kOneLaunchShareOfBandwidth * std::max(device.read_gbps, 1.0));
  return std::min(one, grouped);
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

constexpr Kernel kRoundedKernels[] = {
    {.name = "grouped",
     .tokens = {},
     .estimate_us = estimate_rounded_us,
     .workspace_bytes = workspace_bytes,
     .run = run},
};

constexpr Kernel kDecodeKernels[] = {
    {.name = "one_launch_or_grouped",
     .tokens = {},
     .estimate_us = estimate_decode_us,
     .workspace_bytes = workspace_bytes,
     .run = run},
};

std::span<const Kernel> kernels() {
  if (cuda::kMmaTable == nullptr) return {};
  return kKernels;
}

std::span<const Kernel> rounded_kernels() {
  if (cuda::kMmaTable == nullptr) return {};
  return kRoundedKernels;
}

std::span<const Kernel> decode_kernels() {
  if (cuda::kMmaTable == nullptr) return {};
  return kDecodeKernels;
}

constexpr auto kFeatures =
    Features::set<feature::GateUpBias, feature::DownBias, feature::Limit, feature::Slope, feature::Shift,
                  feature::Saturation, feature::ExpertMap, feature::WeightOnInput, feature::SharedExpert,
                  feature::MixedFormats, feature::ZeroPoints, feature::ActOrder>();
/// Adapters join in the products of the grouped kernels; the one launch has none.
constexpr auto kGroupedFeatures = kFeatures.plus(Features::set<feature::Lora>());
constexpr IntegerGroups kGroups{.multiple = 32, .whole_row = true};

constexpr auto kCalls = CallModes::set<call::Contiguous, call::Batched>();

constexpr Capability of_any_card() {
  return {.device = DeviceKinds::of<device::Cuda>(),
          .uses = InstructionList::set<instruction::CpAsync, instruction::MmaBf16>(),
          .weights =
              Formats::set<format::F16, format::Bf16, format::Mxfp4, format::Nvfp4, format::Fp8Block128,
                           format::Fp8Channel, format::Fp8Tensor, format::Mxfp8, format::Int2, format::Int3,
                           format::Int4, format::Int5, format::Int6, format::Int7, format::Int8, format::Q4_0,
                           format::Q8_0, format::Q4K, format::Q5K, format::Q6K>(),
          .activations = Activations::everything(),
          .features = kGroupedFeatures,
          .calls = kCalls.plus(CallModes::set<call::BatchInvariant>()),
          .integer_groups = kGroups};
}

/// Many tokens are summed up in the tensor cores and few are not: a token's bits depend on how many there
/// are.
constexpr Capability rounded_on_any_card() {
  Capability can = of_any_card();
  can.calls = kCalls;
  can.accuracy = Accuracies::of<accuracy::Bf16Intermediate>();
  return can;
}

}  // namespace

constinit const Backend kCudaMma{
    .name = "cuda.mma",
    .can = of_any_card(),
    .pack = pack,
    .packed_bytes = packed_bytes,
    .kernels = kernels,
    .on_device = on_device,
};

constinit const Backend kCudaDecode{
    .name = "cuda.decode",
    .can = {.device = DeviceKinds::of<device::Cuda>(),
            .uses = InstructionList::set<instruction::CpAsync, instruction::MmaBf16, instruction::Tma>(),
            .weights = Formats::set<format::Mxfp4, format::Nvfp4, format::Fp8Block128, format::Fp8Channel,
                                    format::Fp8Tensor, format::Mxfp8, format::Int2, format::Int3,
                                    format::Int4, format::Int5, format::Int6, format::Int7, format::Int8,
                                    format::Q4_0, format::Q8_0>(),
            .activations = Activations::everything(),
            .features = kFeatures,
            .calls = kCalls,
            .integer_groups = kGroups},
    .pack = pack_decode,
    .packed_bytes = packed_bytes,
    .kernels = decode_kernels,
    .on_device = on_device,
};

constinit const Backend kCudaRounded{
    .name = "cuda.rounded",
    .can = rounded_on_any_card(),
    .pack = pack_rounded,
    .packed_bytes = packed_bytes,
    .kernels = rounded_kernels,
    .only_by_name = true,
    .on_device = on_device,
};

}  // namespace sluice
