// SPDX-License-Identifier: Apache-2.0
// cpu.avx512_bf16: experts on processors with 512-bit vectors and products of bf16 (Zen 4, Sapphire Rapids
// and later). Packs as cpu.avx512 and loses nothing more: rows of inputs that are bf16 are multiplied as
// such, with sums in float32, other rows and the intermediate as there, exact integers or float32.
#include "experts/backend.h"

#include <utility>

#include "experts/cpu/avx512_bf16/table.h"
#include "experts/cpu/common/declares.h"
#include "experts/cpu/common/estimate.h"
#include "experts/cpu/common/forward.h"
#include "experts/cpu/common/pack.h"

namespace sluice {

extern const Backend kCpuAvx512Bf16;

namespace {

using cpu::kAvx512Bf16Lanes;

std::unique_ptr<PackedExperts> pack(const PackInput& input) {
  return cpu::pack(kCpuAvx512Bf16, kAvx512Bf16Lanes, input);
}

std::unique_ptr<PackedExperts> adopt(const PackInput& input, PackedBytes bytes) {
  return cpu::adopt(kCpuAvx512Bf16, kAvx512Bf16Lanes, input, std::move(bytes));
}

std::int64_t packed_bytes(const ExpertsSpec& spec) { return cpu::packed_bytes(spec, kAvx512Bf16Lanes); }

/// Of the time of cpu.avx512, measured on Sapphire Rapids: 1.0 to 1.2 up to 64 tokens, 0.8 to 1.15 above.
/// Nothing that a processor reports tells those apart that add products of bf16 faster (Zen 5), so this is
/// never taken for its cost where cpu.avx512 is there.
constexpr double kOfAvx512 = 1.1;

double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  return kOfAvx512 * cpu::estimate_us(spec, device, tokens, {.lanes = kAvx512Bf16Lanes});
}

void run(const PackedExperts& packed, const Forward& call) {
  cpu::forward(*cpu::kAvx512Bf16Table, packed, call);
}

constexpr Kernel kKernels[] = {
    {.name = "grouped",
     .tokens = {},
     .estimate_us = estimate_us,
     .workspace_bytes = cpu::bf16_workspace_bytes,
     .run = run},
};

std::span<const Kernel> kernels() {
  if (cpu::kAvx512Bf16Table == nullptr) return {};
  return kKernels;
}

}  // namespace

constinit const Backend kCpuAvx512Bf16{
    .name = "cpu.avx512_bf16",
    .can = {.device = DeviceKinds::of<device::Cpu>(),
            .uses = InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c,
                                         instruction::Avx512f, instruction::Avx512bw, instruction::Avx512dq,
                                         instruction::Avx512vl, instruction::Avx512vbmi,
                                         instruction::Avx512vnni, instruction::Avx512bf16>(),
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
