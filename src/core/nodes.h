// SPDX-License-Identifier: Apache-2.0
// NUMA, as Linux shows it: nodes, where a thread may run and allocate, and where memory has come to lie. Raw
// system calls, since libnuma would be a dependency for three of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/nodes.h"

namespace sluice {

/// "0-3,8": 0, 1, 2, 3 and 8. What cannot be read ends the list.
std::vector<int> parse_cpu_list(const std::string& text);

/// Nodes below `folder` (/sys/devices/system/node), with those of their processors that are in `usable`.
std::vector<MemoryNode> nodes_below(const std::string& folder, const std::vector<int>& usable);

/// The calling thread, and threads that it starts, run on these processors. False where the kernel refuses.
bool run_on(const std::vector<int>& cpus);

/// The calling thread, and threads that it starts, take new memory from this node while it has any. False
/// where the kernel refuses, as containers may.
bool prefer_memory_of(int node);

/// Bytes of this process' own memory (no files) by node, out of the text of /proc/self/numa_maps; empty where
/// there is none. Walks every page: for loading, not for calls.
std::vector<std::int64_t> own_bytes_by_node(const std::string& numa_maps);
std::vector<std::int64_t> own_bytes_by_node();

}  // namespace sluice
