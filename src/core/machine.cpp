// SPDX-License-Identifier: Apache-2.0
#include "core/machine.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

namespace sluice {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The number at the start of a file; nothing when there is none ("max") or no file.
std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

void limit_cores(CgroupLimits& limits, std::optional<std::int64_t> quota,
                 std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  limits.cores = std::min(limits.cores, static_cast<double>(*quota) / static_cast<double>(*period));
}

void limit_memory(CgroupLimits& limits, std::optional<std::int64_t> limit) {
  if (limit) limits.memory = std::min(limits.memory, *limit);
}

/// One directory of the unified hierarchy (version 2). cpu.max is "quota period" or "max period".
void read_v2(CgroupLimits& limits, const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");
  std::int64_t quota = 0, period = 0;
  if (file >> quota >> period) limit_cores(limits, quota, period);
  limit_memory(limits, number_in(directory + "/memory.max"));
}

/// One directory of a controller of version 1.
void read_v1(CgroupLimits& limits, const std::string& directory) {
  limit_cores(limits, number_in(directory + "/cpu.cfs_quota_us"),
              number_in(directory + "/cpu.cfs_period_us"));
  limit_memory(limits, number_in(directory + "/memory.limit_in_bytes"));
}

/// Calls `read` for `path` below `mount` and for each of its parents. In a container the path may be one of
/// the host's that does not exist here; its limits then stand at the root of the mount.
template <class Read>
void each_parent(const std::string& mount, std::string path, Read read) {
  while (!path.empty() && path != "/") {
    read(mount + path);
    path.erase(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
  read(mount);
}

/// CPUs in the affinity mask. The mask grows until the kernel is content: it refuses one with too few bits.
int cores_by_affinity() {
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    const std::size_t bytes = CPU_ALLOC_SIZE(bits);
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(bits),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    if (set && sched_getaffinity(0, bytes, set.get()) == 0) return CPU_COUNT_S(bytes, set.get());
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

CgroupLimits my_limits() { return cgroup_limits(text_of("/proc/self/cgroup"), "/sys/fs/cgroup"); }

}  // namespace

CgroupLimits cgroup_limits(const std::string& membership, const std::string& mount) {
  CgroupLimits limits;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/path" or "0::/path"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty())
      each_parent(mount, path, [&](const std::string& directory) { read_v2(limits, directory); });
    else
      each_parent(mount + "/" + controllers, path,
                  [&](const std::string& directory) { read_v1(limits, directory); });
  }
  return limits;
}

int usable_cores() {
  const double quota = my_limits().cores;
  const int cores = cores_by_affinity();
  return std::max(1, quota < cores ? static_cast<int>(quota) : cores);
}

std::int64_t memory_bytes() {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return 0;
  const std::int64_t machine = static_cast<std::int64_t>(info.totalram) * info.mem_unit;
  return std::min(machine, my_limits().memory);
}

Instructions instructions_of(const CpuidBits& bits) {
  constexpr std::uint64_t kYmm = 0x6;          // SSE and AVX state
  constexpr std::uint64_t kZmm = kYmm | 0xE0;  // mask registers and both halves of ZMM
  constexpr std::uint64_t kTiles = 0x60000;    // tile configuration and data
  const auto saved = [&](std::uint64_t state) { return (bits.xcr0 & state) == state; };
  struct Row {
    Instruction instruction;
    std::uint32_t word;
    int bit;
    std::uint64_t state;
  };
  using namespace instruction;
  const Row rows[] = {
      {InstructionList::of<Avx2>(), bits.leaf7_ebx, 5, kYmm},
      {InstructionList::of<Fma>(), bits.leaf1_ecx, 12, kYmm},
      {InstructionList::of<F16c>(), bits.leaf1_ecx, 29, kYmm},
      {InstructionList::of<Avx512f>(), bits.leaf7_ebx, 16, kZmm},
      {InstructionList::of<Avx512bw>(), bits.leaf7_ebx, 30, kZmm},
      {InstructionList::of<Avx512dq>(), bits.leaf7_ebx, 17, kZmm},
      {InstructionList::of<Avx512vl>(), bits.leaf7_ebx, 31, kZmm},
      {InstructionList::of<Avx512vbmi>(), bits.leaf7_ecx, 1, kZmm},
      {InstructionList::of<Avx512vnni>(), bits.leaf7_ecx, 11, kZmm},
      {InstructionList::of<Avx512bf16>(), bits.leaf7_1_eax, 5, kZmm},
      {InstructionList::of<AmxBf16>(), bits.leaf7_edx, 22, kTiles},
      {InstructionList::of<AmxInt8>(), bits.leaf7_edx, 25, kTiles},
  };
  Instructions has;
  for (const Row& row : rows)
    if ((row.word >> row.bit & 1) != 0 && saved(row.state)) has.add(row.instruction);
  return has;
}

}  // namespace sluice
