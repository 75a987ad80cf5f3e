// SPDX-License-Identifier: Apache-2.0
// cpu.avx2: experts on processors with 256-bit vectors. Weights stay quantised in memory and are decoded
// exactly; inputs, intermediate and sums are float32.
//
// cpu.avx2_int8 rounds inputs and the intermediate to int8 (common/int8.h), for prompts of those who ask for
// it by name. It packs as cpu.avx2.
#include "experts/backend.h"

#include "experts/cpu/avx2/table.h"
#include "experts/cpu/common/declares.h"
#include "experts/cpu/common/declares_int8.h"

namespace sluice {

extern const Backend kCpuAvx2, kCpuAvx2Int8;

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

struct Avx2Int8 {
  static constexpr std::string_view kName = "cpu.avx2_int8";
  static constexpr Instructions kUses = Avx2::kUses;
  /// 2.0 to 2.7 times cpu.avx2 was measured at many tokens (docs/decisions/030-int8-activations.md).
  static constexpr cpu::Arithmetic kArithmetic{.lanes = cpu::kAvx2Lanes, .rate = 2.2};
  static constexpr auto kWorkspaceBytes = cpu::workspace_bytes;
  static const cpu::KernelTable* table() { return cpu::kAvx2Int8Table; }
  static const Backend& backend() { return kCpuAvx2Int8; }
};

}  // namespace

constinit const Backend kCpuAvx2 = cpu::declare<Avx2>();
constinit const Backend kCpuAvx2Int8 = cpu::declare_int8<Avx2Int8>();

}  // namespace sluice
