// SPDX-License-Identifier: Apache-2.0
// cpu.avx2: experts on processors with 256-bit vectors. Weights stay quantised in memory and are decoded
// exactly; inputs, intermediate and sums are float32.
#include "experts/backend.h"

#include "experts/cpu/avx2/table.h"
#include "experts/cpu/common/declares.h"

namespace sluice {

extern const Backend kCpuAvx2;

namespace {

struct Avx2 {
  static constexpr std::string_view kName = "cpu.avx2";
  static constexpr Instructions kUses =
      InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c>();
  static constexpr cpu::Arithmetic kArithmetic{.lanes = cpu::kAvx2Lanes};
  static constexpr auto kWorkspaceBytes = cpu::workspace_bytes;
  static const cpu::KernelTable* table() { return cpu::kAvx2Table; }
  static const Backend& backend() { return kCpuAvx2; }
};

}  // namespace

constinit const Backend kCpuAvx2 = cpu::declare<Avx2>();

}  // namespace sluice
