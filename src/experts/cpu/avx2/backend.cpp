// SPDX-License-Identifier: Apache-2.0
// cpu.avx2: experts on processors with 256-bit vectors. Weights stay quantised in memory and are decoded
// exactly; inputs, intermediate and sums are float32.
#include "experts/backend.h"

#include <utility>

#include "experts/cpu/avx2/table.h"
#include "experts/cpu/common/declares.h"
#include "experts/cpu/common/estimate.h"
#include "experts/cpu/common/forward.h"
#include "experts/cpu/common/pack.h"

namespace sluice {

extern const Backend kCpuAvx2;

namespace {

using cpu::kAvx2Lanes;

std::unique_ptr<PackedExperts> pack(const PackInput& input) { return cpu::pack(kCpuAvx2, kAvx2Lanes, input); }

std::unique_ptr<PackedExperts> adopt(const PackInput& input, PackedBytes bytes) {
  return cpu::adopt(kCpuAvx2, kAvx2Lanes, input, std::move(bytes));
}

std::int64_t packed_bytes(const ExpertsSpec& spec) { return cpu::packed_bytes(spec, kAvx2Lanes); }

double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  return cpu::estimate_us(spec, device, tokens, {.lanes = kAvx2Lanes});
}

void run(const PackedExperts& packed, const Forward& call) { cpu::forward(*cpu::kAvx2Table, packed, call); }

constexpr Kernel kKernels[] = {
    {.name = "grouped",
     .tokens = {},
     .estimate_us = estimate_us,
     .workspace_bytes = cpu::workspace_bytes,
     .run = run},
};

std::span<const Kernel> kernels() {
  if (cpu::kAvx2Table == nullptr) return {};
  return kKernels;
}

}  // namespace

constinit const Backend kCpuAvx2{
    .name = "cpu.avx2",
    .can = {.device = DeviceKinds::of<device::Cpu>(),
            .uses = InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c>(),
            .weights = cpu::kWeights,
            .activations = Activations::everything(),
            .features = cpu::kFeatures,
            .calls = cpu::kCalls,
            .integer_groups = cpu::kIntegerGroups},
    .pack = pack,
    .packed_bytes = packed_bytes,
    .kernels = kernels,
    .update = cpu::update,
    .keeping = {.version = cpu::kLayoutVersion, .bytes = cpu::bytes, .adopt = adopt},
};

}  // namespace sluice
