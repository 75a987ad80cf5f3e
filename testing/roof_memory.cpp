// SPDX-License-Identifier: Apache-2.0
#include "testing/roof_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "core/bits.h"
#include "core/error.h"

namespace sluice::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kHugePage = 2 * kMiB;
constexpr std::size_t kSlice = 12 * kMiB;  // an expert of gpt-oss or DeepSeek-V4-Flash is 13 MB
constexpr std::size_t kTask = kMiB / 4;    // small enough to share a slice evenly, large enough to stream

/// sysconf says 0 or -1 where it does not know.
std::size_t last_level_cache() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::clamp(bytes > 0 ? static_cast<std::size_t>(bytes) : 32 * kMiB, 16 * kMiB, 128 * kMiB);
}

std::size_t whole_slices(std::size_t bytes) { return std::max<std::size_t>(1, bytes / kSlice) * kSlice; }

std::size_t cold_window() { return whole_slices(2 * last_level_cache() + kSlice); }

std::size_t buffer_bytes(std::size_t wanted) {
  return whole_slices(wanted != 0 ? wanted : std::max(512 * kMiB, 4 * cold_window()));
}

/// At the start of a huge page; the rest of what it takes to find one is given back.
std::byte* map(std::size_t bytes, Pages pages) {
  void* const mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(mapped != MAP_FAILED, ErrorKind::out_of_memory, [&] {
    return ErrorInfo{.code = "out_of_memory",
                     .what = fmt::format("no {} bytes to measure the memory's speed", bytes),
                     .todo = "measure on a machine with that much free"};
  });
  auto* const first = static_cast<std::byte*>(mapped);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(first) % kHugePage;
  if (before != 0) munmap(first, before);
  std::byte* const at = first + before;
  munmap(at + bytes, kHugePage - before);
  madvise(at, bytes, pages == Pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return at;
}

}  // namespace

double microseconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

void RoofMemory::Unmap::operator()(std::byte* at) const { munmap(at, bytes); }

RoofMemory::RoofMemory(Executor& executor, ReadAll read, Pages pages, std::size_t bytes)
    : executor_(executor),
      read_(read),
      bytes_(buffer_bytes(bytes)),
      window_bytes_(std::min(cold_window(), bytes_)),
      buffer_(map(bytes_, pages), Unmap{bytes_}) {
  for (std::size_t start = 0; start < bytes_; start += kSlice) deck_.push_back(start);
  dealt_ = deck_.size();
  // No page may be the shared page of zeros, which would always be in the cache.
  parallel_for(executor, static_cast<int>(bytes_ / kTask), [&](int task, int) {
    Draw draw(static_cast<std::uint64_t>(task));
    std::byte* const at = buffer_.get() + static_cast<std::size_t>(task) * kTask;
    for (std::size_t i = 0; i < kTask; i += 8) store(at + i, draw.bits());
  });
}

std::size_t RoofMemory::deal() {
  if (dealt_ == deck_.size()) {
    for (std::size_t i = deck_.size(); i > 1; --i)
      std::swap(deck_[i - 1], deck_[static_cast<std::size_t>(draw_.below(static_cast<std::int64_t>(i)))]);
    dealt_ = 0;
  }
  return deck_[dealt_++];
}

double RoofMemory::read_slices() {
  std::vector<std::size_t> starts(window_bytes_ / kSlice);
  for (std::size_t& start : starts) start = deal();
  constexpr std::size_t kTasks = kSlice / kTask;
  const double begin = microseconds_now();
  parallel_for(executor_, static_cast<int>(starts.size() * kTasks), [&](int task, int) {
    const auto t = static_cast<std::size_t>(task);
    sink_.fetch_xor(read_(at(starts[t / kTasks] + t % kTasks * kTask), kTask), std::memory_order_relaxed);
  });
  return microseconds_now() - begin;
}

double RoofMemory::read_sequentially() {
  if (next_ + window_bytes_ > bytes_) next_ = 0;
  const auto workers = static_cast<std::size_t>(executor_.workers());
  const std::size_t tasks = window_bytes_ / kTask;
  const double begin = microseconds_now();
  parallel_for(executor_, executor_.workers(), [&](int worker, int) {
    const auto w = static_cast<std::size_t>(worker);
    const std::size_t first = tasks * w / workers * kTask, last = tasks * (w + 1) / workers * kTask;
    sink_.fetch_xor(read_(at(next_ + first), last - first), std::memory_order_relaxed);
  });
  const double took = microseconds_now() - begin;
  next_ += window_bytes_;
  return took;
}

/// /proc/self/smaps has an entry a mapping: "address-address ...", then lines such as "AnonHugePages: 2048
/// kB".
double RoofMemory::huge_part() const {
  std::ifstream smaps("/proc/self/smaps");
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer_.get()), end = begin + bytes_;
  std::uintptr_t low = 0, high = 0;
  std::size_t huge = 0;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long long from = 0, to = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) {
      low = static_cast<std::uintptr_t>(from), high = static_cast<std::uintptr_t>(to);
    } else if (std::sscanf(line.c_str(), "AnonHugePages: %llu kB", &kib) == 1 && low < end && begin < high) {
      huge += static_cast<std::size_t>(kib) << 10;
    }
  }
  return std::min(1.0, static_cast<double>(huge) / static_cast<double>(bytes_));
}

}  // namespace sluice::testing
