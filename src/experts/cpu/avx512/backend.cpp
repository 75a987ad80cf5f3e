// SPDX-License-Identifier: Apache-2.0
// cpu.avx512: experts on processors with 512-bit vectors. Weights stay quantised in memory and are decoded
// exactly; inputs, intermediate and sums are float32.
#include "experts/backend.h"

#include "experts/cpu/avx512/table.h"
#include "experts/cpu/common/declares.h"

namespace sluice {

extern const Backend kCpuAvx512;

namespace {

struct Avx512 {
  static constexpr std::string_view kName = "cpu.avx512";
  static constexpr Instructions kUses =
      InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c, instruction::Avx512f,
                           instruction::Avx512bw, instruction::Avx512dq, instruction::Avx512vl>();
  static constexpr cpu::Arithmetic kArithmetic{.lanes = cpu::kAvx512Lanes};
  static constexpr auto kWorkspaceBytes = cpu::workspace_bytes;
  static const cpu::KernelTable* table() { return cpu::kAvx512Table; }
  static const Backend& backend() { return kCpuAvx512; }
};

}  // namespace

constinit const Backend kCpuAvx512 = cpu::declare<Avx512>();

}  // namespace sluice
