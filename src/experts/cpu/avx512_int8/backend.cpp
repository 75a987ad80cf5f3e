// SPDX-License-Identifier: Apache-2.0
// cpu.avx512_int8: experts on processors with 512-bit vectors and VNNI (Cascade Lake, Zen 4 and later), with
// inputs and the intermediate rounded to int8 (common/int8.h), for prompts of those who ask for it by name.
// Packs as cpu.avx512 and gives the bits of cpu.avx2_int8.
#include "experts/backend.h"

#include "experts/cpu/avx512_int8/table.h"
#include "experts/cpu/common/declares_int8.h"

namespace sluice {

extern const Backend kCpuAvx512Int8;

namespace {

struct Avx512Int8 {
  static constexpr std::string_view kName = "cpu.avx512_int8";
  static constexpr Instructions kUses =
      InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c, instruction::Avx512f,
                           instruction::Avx512bw, instruction::Avx512dq, instruction::Avx512vl,
                           instruction::Avx512vnni>();
  /// 2.0 to 4.3 times cpu.avx512 was measured at many tokens (docs/decisions/030-int8-activations.md).
  static constexpr cpu::Arithmetic kArithmetic{.lanes = cpu::kAvx512Int8Lanes, .rate = 2.75};
  static constexpr auto kWorkspaceBytes = cpu::workspace_bytes;
  static const cpu::KernelTable* table() { return cpu::kAvx512Int8Table; }
  static const Backend& backend() { return kCpuAvx512Int8; }
};

}  // namespace

constinit const Backend kCpuAvx512Int8 = cpu::declare_int8<Avx512Int8>();

}  // namespace sluice
