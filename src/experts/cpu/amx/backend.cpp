// SPDX-License-Identifier: Apache-2.0
// cpu.amx: experts on processors with tiles of bf16 (Sapphire Rapids and later). Packs as cpu.avx512 and
// loses nothing more: inputs and intermediate are multiplied as sums of up to three rows of bf16, exactly,
// with sums in float32; formats that bf16 does not hold, and rows that it does not, as in cpu.avx512, and so
// are experts of few tokens, which tiles would hold up.
//
// cpu.amx_tiles takes tiles for those as well: sums have another order there than in the other kernels, so
// this one is batch invariant, and cpu.amx is not.
#include "experts/backend.h"

#include "experts/cpu/amx/table.h"
#include "experts/cpu/common/declares.h"

namespace sluice {

extern const Backend kCpuAmx, kCpuAmxTiles;

namespace {

struct AmxTiles {
  static constexpr std::string_view kName = "cpu.amx_tiles";
  static constexpr Instructions kUses =
      InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c, instruction::Avx512f,
                           instruction::Avx512bw, instruction::Avx512dq, instruction::Avx512vl,
                           instruction::Avx512vbmi, instruction::Avx512vnni, instruction::AmxBf16>();
  /// Against the kernels of cpu.avx512 on Sapphire Rapids: 1.3 to 2.9 times their time at one token an
  /// expert, a third of it at 64, where decoding is the limit and not the tiles, whose peak is 17 times that
  /// of multiply-adds.
  static constexpr cpu::Arithmetic kArithmetic{.lanes = cpu::kAmxLanes, .rate = 3, .bandwidth = 0.5};
  static constexpr auto kWorkspaceBytes = cpu::bf16_terms_workspace_bytes;
  static const cpu::KernelTable* table() { return cpu::kAmxTilesTable; }
  static const Backend& backend() { return kCpuAmxTiles; }
};

struct Amx {
  static constexpr std::string_view kName = "cpu.amx";
  static constexpr Instructions kUses = AmxTiles::kUses;
  static constexpr cpu::Arithmetic kArithmetic = AmxTiles::kArithmetic;
  static constexpr cpu::Arithmetic kOfFewTokens{.lanes = cpu::kAmxLanes};  // cpu.avx512's
  static constexpr auto kWorkspaceBytes = cpu::bf16_terms_workspace_bytes;
  static const cpu::KernelTable* table() { return cpu::kAmxTable; }
  static const Backend& backend() { return kCpuAmx; }
};

/// A token's bits depend on how many its expert has.
constexpr Backend declare_amx() {
  Backend backend = cpu::declare<Amx>();
  backend.can.calls = backend.can.calls.minus(CallModes::set<call::BatchInvariant>());
  return backend;
}

}  // namespace

constinit const Backend kCpuAmx = declare_amx();
constinit const Backend kCpuAmxTiles = cpu::declare<AmxTiles>();

}  // namespace sluice
