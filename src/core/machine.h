// SPDX-License-Identifier: Apache-2.0
// What this process may use of the machine it runs on: cores, memory, instructions. Linux.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "core/devices.h"

namespace sluice {

/// Threads that may run at once: the affinity mask, and the cgroup's quota rounded down, since a thread more
/// than the quota is a thread that gets throttled. At least 1.
int usable_cores();

/// The machine's memory, or the cgroup's limit where that is less.
std::int64_t memory_bytes();

/// The tightest limits on the way from a process's cgroup to the root. Unlimited where nothing is said.
struct CgroupLimits {
  double cores = std::numeric_limits<double>::infinity();
  std::int64_t memory = std::numeric_limits<std::int64_t>::max();
};

/// Reads versions 1 and 2. `membership` is the text of /proc/self/cgroup, `mount` is /sys/fs/cgroup.
CgroupLimits cgroup_limits(const std::string& membership, const std::string& mount);

/// What cpuid and xgetbv say, as they say it.
struct CpuidBits {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;
  std::uint64_t xcr0 = 0;  // which registers the operating system saves
};

/// The instructions that both the processor and the operating system support. AMX still wants a permission
/// from Linux (arch_prctl ARCH_REQ_XCOMP_PERM), for which this_processor asks.
Instructions instructions_of(const CpuidBits& bits);

/// This processor: processor_x86.cpp, or processor_other.cpp where there is no cpuid. Asks Linux for the
/// permission to use AMX where the processor has it, and leaves it out without.
struct Processor {
  std::string name;
  Instructions has;
};
Processor this_processor();

}  // namespace sluice
