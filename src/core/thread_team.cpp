// SPDX-License-Identifier: Apache-2.0
// The resident team: threads that wait for the next job, take tasks from one counter, and report what they
// did.
//
// A job is published in `open_`: a job number in the high half, tasks not yet taken in the low half. Taking a
// task is one compare-and-swap on it, so a thread that wakes late can neither take a task twice nor touch the
// next job with the last one's body. The caller waits for the tasks, not for the threads: a thread that the
// system does not schedule delays nobody unless it holds a task.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/spin.h"
#include "sluice/device.h"
#include "sluice/executor.h"

namespace sluice {
namespace {

class ThreadTeam final : public Executor {
 public:
  ThreadTeam(int threads, std::chrono::microseconds spin) : workers_(threads), spin_(spin) {
    threads_.reserve(static_cast<std::size_t>(threads - 1));
    try {
      for (int worker = 1; worker < threads; ++worker)
        threads_.emplace_back([this, worker] { serve(worker); });
    } catch (...) {
      dismiss();
      throw;
    }
  }

  ~ThreadTeam() override { dismiss(); }

  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int workers() const override { return workers_; }

  void parallel_for(int tasks, TaskBody body) override {
    if (tasks <= 0) return;
    const std::lock_guard<std::mutex> one_job_at_a_time(callers_);
    tasks_ = tasks;
    body_ = body;
    done_.store(0, std::memory_order_relaxed);
    open_.store(++job_ << 32 | static_cast<std::uint32_t>(tasks), std::memory_order_release);
    if (tasks > 1 && !threads_.empty()) {
      calls_.fetch_add(1, std::memory_order_release);
      calls_.notify_all();
    }
    take_tasks(0);
    if (!spin_until(spin_, [&] { return done_.load(std::memory_order_acquire) == tasks; }))
      for (int done; (done = done_.load(std::memory_order_acquire)) != tasks;)
        done_.wait(done, std::memory_order_acquire);
  }

 private:
  void serve(int worker) {
    std::uint32_t seen = 0;
    while (true) {
      const auto called = [&] { return calls_.load(std::memory_order_acquire) != seen; };
      if (!spin_until(spin_, called)) calls_.wait(seen, std::memory_order_acquire);
      seen = calls_.load(std::memory_order_acquire);
      if (dismissed_.load(std::memory_order_acquire)) return;
      take_tasks(worker);
    }
  }

  /// Runs tasks until none is open. `tasks_` and `body_` are read only while holding a task: until that task
  /// is reported the job cannot end and they cannot change.
  void take_tasks(int worker) {
    int taken = 0;
    std::uint64_t open = open_.load(std::memory_order_acquire);
    while (static_cast<std::uint32_t>(open) != 0) {
      if (!open_.compare_exchange_weak(open, open - 1, std::memory_order_acquire)) continue;
      body_.call(body_.context, tasks_ - static_cast<int>(static_cast<std::uint32_t>(open)), worker);
      ++taken;
      open = open_.load(std::memory_order_acquire);
    }
    if (taken == 0) return;
    done_.fetch_add(taken, std::memory_order_acq_rel);
    // A worker may be here when the caller has already gone: done_ lives as long as the team, and a spurious
    // wake of the next caller is harmless because it looks at the count again.
    if (worker != 0) done_.notify_one();
  }

  void dismiss() {
    dismissed_.store(true, std::memory_order_release);
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const int workers_;
  const std::chrono::microseconds spin_;
  std::mutex callers_;
  int tasks_ = 0;
  TaskBody body_{};
  std::uint64_t job_ = 0;
  // Apart from each other: every task writes the first, every worker the second, waiting threads read the
  // third.
  alignas(64) std::atomic<std::uint64_t> open_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<std::uint32_t> calls_{0};
  std::atomic<bool> dismissed_{false};
  std::vector<std::thread> threads_;  // last: they use everything above
};

}  // namespace

std::unique_ptr<Executor> make_thread_team(int threads) {
  require(threads >= 0, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "threads_negative",
                     .what = "a thread team of " + std::to_string(threads) + " threads was asked for",
                     .todo = "give a positive number, or 0 for as many as the machine allows"};
  });
  const int cores = detect().cores;
  const int count = threads == 0 ? cores : threads;
  // With more threads than cores a spinning thread would keep the working one off its core.
  const auto spin = count <= cores ? kSpin : std::chrono::microseconds{0};
  return std::make_unique<ThreadTeam>(count, spin);
}

}  // namespace sluice
