// SPDX-License-Identifier: Apache-2.0
// cpu.avx512_bf16: experts on processors with 512-bit vectors and products of bf16 (Zen 4, Sapphire Rapids
// and later). Packs as cpu.avx512 and loses nothing more: rows of inputs that are bf16 are multiplied as
// such, with sums in float32, other rows and the intermediate as there, exact integers or float32.
#include "experts/backend.h"

#include "experts/cpu/avx512_bf16/table.h"
#include "experts/cpu/common/declares.h"

namespace sluice {

extern const Backend kCpuAvx512Bf16;

namespace {

struct Avx512Bf16 {
  static constexpr std::string_view kName = "cpu.avx512_bf16";
  static constexpr Instructions kUses =
      InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c, instruction::Avx512f,
                           instruction::Avx512bw, instruction::Avx512dq, instruction::Avx512vl,
                           instruction::Avx512vbmi, instruction::Avx512vnni, instruction::Avx512bf16>();
  /// Measured on Sapphire Rapids: 1.0 to 1.2 of the time of cpu.avx512 up to 64 tokens, 0.8 to 1.15 above.
  /// Nothing that a processor reports tells those apart that add products of bf16 faster (Zen 5), so this is
  /// never taken for its cost where cpu.avx512 is there.
  static constexpr cpu::Arithmetic kArithmetic{.lanes = cpu::kAvx512Bf16Lanes, .times = 1.1};
  static constexpr auto kWorkspaceBytes = cpu::bf16_workspace_bytes;
  static const cpu::KernelTable* table() { return cpu::kAvx512Bf16Table; }
  static const Backend& backend() { return kCpuAvx512Bf16; }
};

}  // namespace

constinit const Backend kCpuAvx512Bf16 = cpu::declare<Avx512Bf16>();

}  // namespace sluice
