// SPDX-License-Identifier: Apache-2.0
#include "core/nodes.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace sluice {
namespace {

constexpr int kPreferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
constexpr int kMostNodes = 1024;
constexpr int kWordBits = 8 * sizeof(unsigned long);

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Takes a number off the front; false where there is none.
bool take_number(std::string_view& text, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take_char(std::string_view& text, char letter) {
  if (text.empty() || text.front() != letter) return false;
  text.remove_prefix(1);
  return true;
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

/// One mapping: "7f00 default anon=3 dirty=3 N0=2 N1=1 kernelpagesize_kB=4".
struct Mapping {
  bool file = false;
  std::int64_t page_kib = 4;
  std::vector<std::int64_t> pages = {};  // by node
};

Mapping mapping_of(const std::string& line) {
  Mapping mapping;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    std::string_view rest = word;
    std::int64_t node = 0, number = 0;
    if (rest.starts_with("file=")) {
      mapping.file = true;
    } else if (constexpr std::string_view kSize = "kernelpagesize_kB="; rest.starts_with(kSize)) {
      rest.remove_prefix(kSize.size());
      if (take_number(rest, number)) mapping.page_kib = number;
    } else if (take_char(rest, 'N') && take_number(rest, node) && take_char(rest, '=') &&
               take_number(rest, number) && node >= 0 && node < kMostNodes) {
      const auto index = static_cast<std::size_t>(node);
      mapping.pages.resize(std::max(mapping.pages.size(), index + 1));
      mapping.pages[index] += number;
    }
  }
  return mapping;
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::string_view rest = text;
  for (std::int64_t first = 0; take_number(rest, first);) {
    std::int64_t last = first;
    if (take_char(rest, '-') && !take_number(rest, last)) break;
    for (std::int64_t cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu)
      cpus.push_back(static_cast<int>(cpu));
    if (!take_char(rest, ',')) break;
  }
  return cpus;
}

std::vector<MemoryNode> nodes_below(const std::string& folder, const std::vector<int>& usable) {
  std::vector<MemoryNode> nodes;
  for (const int id : parse_cpu_list(text_of(folder + "/online"))) {
    MemoryNode node{.id = id};
    for (const int cpu : parse_cpu_list(text_of(folder + "/node" + std::to_string(id) + "/cpulist")))
      if (std::find(usable.begin(), usable.end(), cpu) != usable.end()) node.cpus.push_back(cpu);
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.empty()) nodes.push_back({.id = 0, .cpus = usable});
  return nodes;
}

std::vector<MemoryNode> memory_nodes() { return nodes_below("/sys/devices/system/node", usable_cpus()); }

bool run_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

bool prefer_memory_of(int node) {
  if (node < 0 || node >= kMostNodes) return false;
  unsigned long mask[kMostNodes / kWordBits] = {};
  mask[node / kWordBits] = 1ul << (node % kWordBits);
  return syscall(SYS_set_mempolicy, kPreferred, mask, kMostNodes) == 0;
}

std::vector<std::int64_t> own_bytes_by_node(const std::string& numa_maps) {
  std::vector<std::int64_t> bytes;
  std::istringstream lines(numa_maps);
  for (std::string line; std::getline(lines, line);) {
    const Mapping mapping = mapping_of(line);
    if (mapping.file) continue;
    bytes.resize(std::max(bytes.size(), mapping.pages.size()));
    for (std::size_t node = 0; node < mapping.pages.size(); ++node)
      bytes[node] += mapping.pages[node] * mapping.page_kib * 1024;
  }
  return bytes;
}

std::vector<std::int64_t> own_bytes_by_node() { return own_bytes_by_node(text_of("/proc/self/numa_maps")); }

}  // namespace sluice
