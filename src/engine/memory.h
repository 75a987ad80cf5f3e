// SPDX-License-Identifier: Apache-2.0
// How much memory a process may still take, asked before weights are packed: a machine that swaps, or a
// container that is killed, explains nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

/// "MemAvailable" of /proc/meminfo, in bytes.
std::optional<std::int64_t> parse_mem_available(std::string_view meminfo);

/// What a cgroup leaves: its limit less what it uses, page cache given back. `stat` is memory.stat, of
/// version 1 or 2. Nothing when there is no limit ("max", or the huge number of version 1).
std::optional<std::int64_t> parse_cgroup_left(std::string_view limit, std::string_view usage,
                                              std::string_view stat);

/// Bytes this process may still take; nothing where the system does not say.
std::optional<std::int64_t> available_memory();

/// "13.2 GB", decimal.
std::string bytes_text(std::int64_t bytes);

}  // namespace sluice
