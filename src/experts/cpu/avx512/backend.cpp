// SPDX-License-Identifier: Apache-2.0
// cpu.avx512: experts on processors with 512-bit vectors. Weights stay quantised in memory and are decoded
// exactly; inputs, intermediate and sums are float32.
#include "experts/backend.h"

#include <utility>

#include "experts/cpu/avx512/table.h"
#include "experts/cpu/common/declares.h"
#include "experts/cpu/common/estimate.h"
#include "experts/cpu/common/forward.h"
#include "experts/cpu/common/pack.h"

namespace sluice {

extern const Backend kCpuAvx512;

namespace {

using cpu::kAvx512Lanes;

std::unique_ptr<PackedExperts> pack(const PackInput& input) {
  return cpu::pack(kCpuAvx512, kAvx512Lanes, input);
}

std::unique_ptr<PackedExperts> adopt(const PackInput& input, PackedBytes bytes) {
  return cpu::adopt(kCpuAvx512, kAvx512Lanes, input, std::move(bytes));
}

std::int64_t packed_bytes(const ExpertsSpec& spec) { return cpu::packed_bytes(spec, kAvx512Lanes); }

double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  return cpu::estimate_us(spec, device, tokens, {.lanes = kAvx512Lanes});
}

void run(const PackedExperts& packed, const Forward& call) { cpu::forward(*cpu::kAvx512Table, packed, call); }

constexpr Kernel kKernels[] = {
    {.name = "grouped",
     .tokens = {},
     .estimate_us = estimate_us,
     .workspace_bytes = cpu::workspace_bytes,
     .run = run},
};

std::span<const Kernel> kernels() {
  if (cpu::kAvx512Table == nullptr) return {};
  return kKernels;
}

}  // namespace

constinit const Backend kCpuAvx512{
    .name = "cpu.avx512",
    .can = {.device = DeviceKinds::of<device::Cpu>(),
            .uses = InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c,
                                         instruction::Avx512f, instruction::Avx512bw, instruction::Avx512dq,
                                         instruction::Avx512vl>(),
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
