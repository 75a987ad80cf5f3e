// SPDX-License-Identifier: Apache-2.0
// cpuid and xgetbv. The bit numbers are those of the Intel manual, volume 2A, CPUID; AMD uses the same.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "core/machine.h"

namespace sluice {
namespace {

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// Zeros when the processor has no such leaf.
Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

constexpr std::uint32_t kOsxsave = 1u << 27;  // leaf 1, ecx: xgetbv may be executed

std::uint64_t read_xcr0() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

CpuidBits read_bits() {
  const Registers one = cpuid(1), seven = cpuid(7);
  // Leaf 7 says in eax how many subleaves it has; some processors answer anything for those they lack.
  const Registers seven_1 = seven.eax >= 1 ? cpuid(7, 1) : Registers{};
  return {.leaf1_ecx = one.ecx,
          .leaf7_ebx = seven.ebx,
          .leaf7_ecx = seven.ecx,
          .leaf7_edx = seven.edx,
          .leaf7_1_eax = seven_1.eax,
          .xcr0 = (one.ecx & kOsxsave) != 0 ? read_xcr0() : 0};
}

/// Linux lets a process use the data of tiles once it has asked (arch/x86/include/uapi/asm/prctl.h); the
/// answer holds for all of its threads, until it ends. Asking twice does no harm. Not granted where a thread
/// has an alternative signal stack that could not hold them, and before Linux 5.16.
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Instructions usable(Instructions has) {
  constexpr Instructions kTiles = InstructionList::set<instruction::AmxBf16, instruction::AmxInt8>();
  const bool has_tiles = kTiles.minus(has) != kTiles;
  return has_tiles && !may_use_tiles() ? has.minus(kTiles) : has;
}

/// "AMD EPYC 7763 64-Core Processor", without the blanks around it.
std::string brand() {
  char text[49] = {};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002u + i);
    std::memcpy(text + 16 * i, &r, sizeof(r));
  }
  std::string name = text;
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "x86-64" : name;
}

}  // namespace

Processor this_processor() { return {.name = brand(), .has = usable(instructions_of(read_bits()))}; }

}  // namespace sluice
