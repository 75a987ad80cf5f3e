// SPDX-License-Identifier: Apache-2.0
// The roof: reading in expert-sized slices, and multiply-adds in registers.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>

#include "core/bits.h"
#include "core/error.h"
#include "testing/draw.h"
#include "testing/measure.h"
#include "testing/roof_kernels.h"

namespace sluice::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSlice = 12 * kMiB;  // an expert of gpt-oss or DeepSeek-V4-Flash is 13 MB
constexpr std::size_t kTask = kMiB / 4;    // small enough to share a slice evenly, large enough to stream
constexpr std::size_t kHugePage = 2 * kMiB;
constexpr double kComputeSeconds = 1e-3;  // of a window

/// sysconf says 0 or -1 where it does not know.
std::size_t last_level_cache() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::clamp(bytes > 0 ? static_cast<std::size_t>(bytes) : 32 * kMiB, 16 * kMiB, 128 * kMiB);
}

std::size_t whole_slices(std::size_t bytes) { return std::max<std::size_t>(1, bytes / kSlice) * kSlice; }

template <class Work>
double microseconds(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kHugePage}); }
};
using Buffer = std::unique_ptr<std::byte, FreeAligned>;

/// In huge pages where the system has them, as packed weights are.
Buffer make_buffer(std::size_t bytes) {
  try {
    Buffer buffer(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kHugePage})));
    madvise(buffer.get(), bytes, MADV_HUGEPAGE);  // a wish; without it the roof is some 10 % lower
    return buffer;
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::out_of_memory, {.code = "out_of_memory",
                                    .what = fmt::format("no {} bytes to measure the memory's speed", bytes),
                                    .todo = "measure on a machine with that much free"});
  }
}

}  // namespace

struct RoofMeter::State {
  Executor& executor;
  RoofKernels kernels;
  std::size_t bytes;         // of the buffer, whole slices
  std::size_t window_bytes;  // of one reading window, whole slices
  Buffer buffer;
  std::vector<std::size_t> deck;  // starts of slices, shuffled; each is read once before any is read again
  std::size_t dealt = 0;
  Draw draw{7};
  int rounds = 1000;  // of a computing task
  std::vector<double> read_us = {}, compute_us = {};
  std::atomic<std::uint64_t> sink{0};  // so that no result is unused

  double compute();
  void read();
  std::size_t deal();
};

RoofMeter::RoofMeter(Executor& executor, std::size_t buffer_bytes) {
  const std::size_t window = 2 * last_level_cache() + kSlice;
  const std::size_t wanted = buffer_bytes != 0 ? buffer_bytes : std::max(512 * kMiB, 4 * window);
  const std::size_t bytes = whole_slices(wanted);
  state_.reset(new State{.executor = executor,
                         .kernels = roof_kernels(detect().has),
                         .bytes = bytes,
                         .window_bytes = std::min(whole_slices(window), bytes),
                         .buffer = make_buffer(bytes),
                         .deck = {}});
  for (std::size_t start = 0; start < bytes; start += kSlice) state_->deck.push_back(start);
  state_->dealt = state_->deck.size();
  // No page may be the shared page of zeros, which would always be in the cache.
  parallel_for(executor, static_cast<int>(bytes / kTask), [&](int task, int) {
    Draw draw(static_cast<std::uint64_t>(task));
    std::byte* const at = state_->buffer.get() + static_cast<std::size_t>(task) * kTask;
    for (std::size_t i = 0; i < kTask; i += 8) store(at + i, draw.bits());
  });
  // Rounds for a window of the wanted length.
  for (double us = state_->compute(); us < kComputeSeconds * 1e6 / 2; us = state_->compute())
    state_->rounds *= 2;
}

RoofMeter::~RoofMeter() = default;

/// Several tasks a worker, so that one that is held up does not hold up all.
double RoofMeter::State::compute() {
  return microseconds([&] {
    parallel_for(executor, 4 * executor.workers(), [&](int, int) {
      sink.fetch_xor(bits_as<std::uint32_t>(kernels.multiply_add(rounds)), std::memory_order_relaxed);
    });
  });
}

std::size_t RoofMeter::State::deal() {
  if (dealt == deck.size()) {
    for (std::size_t i = deck.size(); i > 1; --i)
      std::swap(deck[i - 1], deck[static_cast<std::size_t>(draw.below(static_cast<std::int64_t>(i)))]);
    dealt = 0;
  }
  return deck[dealt++];
}

void RoofMeter::State::read() {
  std::vector<std::size_t> starts(window_bytes / kSlice);
  for (std::size_t& start : starts) start = deal();
  constexpr std::size_t kTasks = kSlice / kTask;
  read_us.push_back(microseconds([&] {
    parallel_for(executor, static_cast<int>(starts.size() * kTasks), [&](int task, int) {
      const auto t = static_cast<std::size_t>(task);
      const std::byte* const at = buffer.get() + starts[t / kTasks] + t % kTasks * kTask;
      sink.fetch_xor(kernels.read(at, kTask), std::memory_order_relaxed);
    });
  }));
}

void RoofMeter::window() {
  state_->compute_us.push_back(state_->compute());
  state_->read();
}

Roof RoofMeter::roof() const {
  Roof roof{.read = summarise(state_->read_us), .compute = summarise(state_->compute_us)};
  if (roof.read.windows == 0) return roof;
  const double flops = 2.0 * state_->kernels.lanes * state_->rounds * 4 * state_->executor.workers();
  roof.read_gbps = static_cast<double>(state_->window_bytes) / roof.read.median_us * 1e-3;
  roof.gflops = flops / roof.compute.median_us * 1e-3;
  return roof;
}

void RoofMeter::restart() {
  state_->read_us.clear();
  state_->compute_us.clear();
}

Roof measure_roof(Executor& executor) {
  RoofMeter meter(executor);
  for (int i = 0; i < 100; ++i) meter.window();
  return meter.roof();
}

}  // namespace sluice::testing
