// SPDX-License-Identifier: Apache-2.0
#include "engine/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace sluice {
namespace {

std::optional<std::int64_t> parse_number(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

/// The number behind `key` at the start of a line.
std::optional<std::int64_t> field(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    if (text.substr(at).starts_with(key)) return parse_number(text.substr(at + key.size()));
    if (text.find('\n', at) == std::string_view::npos) break;
  }
  return std::nullopt;
}

/// The file's text; empty when it cannot be read, which here means "the system does not say".
std::string read_text(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The path of this process's cgroup for `controllers` ("" in version 2): the third field of its line.
std::string cgroup_path(std::string_view cgroups, std::string_view controllers) {
  const std::string key = ":" + std::string(controllers) + ":";
  const std::size_t at = cgroups.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view path = cgroups.substr(at + key.size());
  return std::string(path.substr(0, path.find('\n')));
}

struct CgroupFiles {
  std::string root, limit, usage;
};

/// The least that any level from the process's cgroup up to the root leaves. Inside a container the path
/// often names a place outside; then only the root is seen, which is the container's own.
std::optional<std::int64_t> cgroup_left(std::string path, const CgroupFiles& files) {
  std::optional<std::int64_t> least;
  while (true) {
    const std::string folder = files.root + (path == "/" ? "" : path) + "/";
    const auto left = parse_cgroup_left(read_text(folder + files.limit), read_text(folder + files.usage),
                                        read_text(folder + "memory.stat"));
    if (left) least = std::min(*left, least.value_or(*left));
    if (path.empty() || path == "/") return least;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

std::optional<std::int64_t> parse_mem_available(std::string_view meminfo) {
  const auto kilobytes = field(meminfo, "MemAvailable:");
  if (!kilobytes) return std::nullopt;
  return *kilobytes * 1024;
}

std::optional<std::int64_t> parse_cgroup_left(std::string_view limit, std::string_view usage,
                                              std::string_view stat) {
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // version 1 says 2^63 less a page
  const auto most = parse_number(limit), used = parse_number(usage);
  if (!most || !used || *most >= kNoLimit) return std::nullopt;
  const std::int64_t cache =
      field(stat, "active_file ").value_or(0) + field(stat, "inactive_file ").value_or(0);
  return std::max<std::int64_t>(*most - std::max<std::int64_t>(*used - cache, 0), 0);
}

std::optional<std::int64_t> available_memory() {
  const std::string cgroups = read_text("/proc/self/cgroup");
  const std::optional<std::int64_t> all[] = {
      parse_mem_available(read_text("/proc/meminfo")),
      cgroup_left(cgroup_path(cgroups, ""), {"/sys/fs/cgroup", "memory.max", "memory.current"}),
      cgroup_left(cgroup_path(cgroups, "memory"),
                  {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"})};
  std::optional<std::int64_t> least;
  for (const auto& left : all)
    if (left) least = std::min(*left, least.value_or(*left));
  return least;
}

std::string bytes_text(std::int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (value >= 1e9) return fmt::format("{:.1f} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} MB", value / 1e6);
  return fmt::format("{:.1f} kB", value / 1e3);
}

}  // namespace sluice
