// SPDX-License-Identifier: Apache-2.0
// cpu.amx: experts on processors with tiles of bf16 (Sapphire Rapids and later). Packs as cpu.avx512 and
// loses nothing more: inputs and intermediate are multiplied as sums of up to three rows of bf16, exactly,
// with sums in float32; formats that bf16 does not hold, and rows that it does not, as in cpu.avx512.
#include <utility>

#include "experts/backend.h"
#include "experts/cpu/amx/table.h"
#include "experts/cpu/common/declares.h"
#include "experts/cpu/common/estimate.h"
#include "experts/cpu/common/forward.h"
#include "experts/cpu/common/pack.h"

namespace sluice {

extern const Backend kCpuAmx;

namespace {

using cpu::kAmxLanes;

std::unique_ptr<PackedExperts> pack(const PackInput& input) { return cpu::pack(kCpuAmx, kAmxLanes, input); }

std::unique_ptr<PackedExperts> adopt(const PackInput& input, PackedBytes bytes) {
  return cpu::adopt(kCpuAmx, kAmxLanes, input, std::move(bytes));
}

std::int64_t packed_bytes(const ExpertsSpec& spec) { return cpu::packed_bytes(spec, kAmxLanes); }

/// Against cpu.avx512 on Sapphire Rapids: 1.3 to 1.9 times its time at one or two tokens an expert, a third
/// of it at 64, where decoding is the limit and not the tiles, whose peak is 17 times that of multiply-adds.
constexpr double kRate = 3, kBandwidth = 0.5;

double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  return cpu::estimate_us(spec, device, tokens, {.lanes = kAmxLanes, .rate = kRate, .bandwidth = kBandwidth});
}

void run(const PackedExperts& packed, const Forward& call) { cpu::forward(*cpu::kAmxTable, packed, call); }

constexpr Kernel kKernels[] = {
    {.name = "grouped",
     .tokens = {},
     .estimate_us = estimate_us,
     .workspace_bytes = cpu::bf16_terms_workspace_bytes,
     .run = run},
};

std::span<const Kernel> kernels() {
  if (cpu::kAmxTable == nullptr) return {};
  return kKernels;
}

}  // namespace

constinit const Backend kCpuAmx{
    .name = "cpu.amx",
    .can = {.device = DeviceKinds::of<device::Cpu>(),
            .uses = InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c,
                                         instruction::Avx512f, instruction::Avx512bw, instruction::Avx512dq,
                                         instruction::Avx512vl, instruction::Avx512vbmi,
                                         instruction::Avx512vnni, instruction::AmxBf16>(),
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
