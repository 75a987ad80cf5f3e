// SPDX-License-Identifier: Apache-2.0
// The resident team keeps the promises of sluice/executor.h: every task once, distinct workers, any caller,
// any load.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sluice/error.h"
#include "sluice/executor.h"

namespace sluice {
namespace {

/// Counts how often each task ran and whether two tasks ever held one worker number at the same time.
struct Record {
  explicit Record(int tasks, int workers) : runs(tasks), busy(workers) {}

  void operator()(int task, int worker) {
    if (busy.at(worker).fetch_add(1) != 0) clashes.fetch_add(1);
    runs.at(task).fetch_add(1);
    busy.at(worker).fetch_sub(1);
  }

  bool each_once() const {
    for (const auto& count : runs)
      if (count.load() != 1) return false;
    return true;
  }

  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<int>> busy;
  std::atomic<int> clashes{0};
};

void expect_good(Executor& team, int tasks) {
  Record record(tasks, team.workers());
  parallel_for(team, tasks, record);
  EXPECT_TRUE(record.each_once()) << tasks << " tasks on " << team.workers() << " workers";
  EXPECT_EQ(record.clashes.load(), 0);
}

TEST(ThreadTeam, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 3, 8}) {
    const auto team = make_thread_team(threads);
    EXPECT_EQ(team->workers(), threads);
    for (int tasks : {1, 2, 3, 7, 64, 1000}) expect_good(*team, tasks);
  }
}

TEST(ThreadTeam, RunsNothingForZeroTasks) {
  const auto team = make_thread_team(2);
  std::atomic<int> runs{0};
  parallel_for(*team, 0, [&](int, int) { runs.fetch_add(1); });
  EXPECT_EQ(runs.load(), 0);
}

TEST(ThreadTeam, OfOneWorksInTheCallersThread) {
  const auto team = make_thread_team(1);
  const auto caller = std::this_thread::get_id();
  parallel_for(*team, 5, [&](int, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadTeam, WorksAtTheSameTime) {
  // Each task waits for the other one, so this ends only when two threads work.
  const auto team = make_thread_team(2);
  std::atomic<int> arrived{0};
  parallel_for(*team, 2, [&](int, int) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ThreadTeam, TasksSeeWhatTheCallerWroteAndTheOtherWayRound) {
  const auto team = make_thread_team(4);
  std::vector<int> in(256), out(256);  // plain memory: a missing ordering is for ThreadSanitizer to find
  for (int round = 0; round < 200; ++round) {
    for (int& value : in) value = round;
    parallel_for(*team, 256, [&](int task, int) { out[task] = in[task] + task; });
    for (int i = 0; i < 256; ++i) ASSERT_EQ(out[i], round + i);
  }
}

TEST(ThreadTeam, ManyShortJobs) {
  const auto team = make_thread_team(4);
  std::atomic<int> runs{0};
  for (int job = 0; job < 5000; ++job)
    parallel_for(*team, job % 4, [&](int, int) { runs.fetch_add(1, std::memory_order_relaxed); });
  EXPECT_EQ(runs.load(), 5000 / 4 * (0 + 1 + 2 + 3));
}

TEST(ThreadTeam, WakesAfterSleeping) {
  const auto team = make_thread_team(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far past the spinning
    expect_good(*team, 30);
  }
}

TEST(ThreadTeam, SeveralCallersAtOnce) {
  const auto team = make_thread_team(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int job = 0; job < 200; ++job) expect_good(*team, 17);
    });
  for (auto& caller : callers) caller.join();
}

TEST(ThreadTeam, StandsLoad) {
  // More busy threads than cores: workers are descheduled in the middle of anything.
  std::atomic<bool> stop{false};
  std::vector<std::thread> load;
  for (int i = 0; i < 4; ++i)
    load.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
  {
    const auto team = make_thread_team(4);
    for (int job = 0; job < 50; ++job) expect_good(*team, 100);
  }
  stop.store(true);
  for (auto& thread : load) thread.join();
}

TEST(ThreadTeam, EndsWithoutEverWorking) {
  for (int i = 0; i < 50; ++i) make_thread_team(4);
}

TEST(ThreadTeam, SizesItselfByTheMachine) { EXPECT_GE(make_thread_team()->workers(), 1); }

TEST(ThreadTeam, RefusesANegativeSize) {
  try {
    make_thread_team(-1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_EQ(error.info().code, "threads_negative");
  }
}

}  // namespace
}  // namespace sluice
