// SPDX-License-Identifier: Apache-2.0
// Who runs the work of a CPU backend. The default is a resident team of threads; a host that has a pool of
// its own implements this interface over it, and the library then starts no thread.
#pragma once

#include <memory>
#include <type_traits>

namespace sluice {

/// A borrowed callable: two words, no allocation. `call(context, task, worker)`.
struct TaskBody {
  void* context;
  void (*call)(void* context, int task, int worker);
};

class Executor {
 public:
  virtual ~Executor() = default;

  /// How many workers may run at once. Worker numbers lie in [0, workers()); per-worker scratch is sized by
  /// this.
  virtual int workers() const = 0;

  /// Runs body for every task in [0, tasks), each exactly once, in any order, and returns when all are done.
  /// Two tasks that run at the same time have different worker numbers. Everything written before the call is
  /// visible to the tasks, and everything the tasks wrote to the caller. May be called from several threads
  /// at once. The body does not throw and does not call parallel_for.
  virtual void parallel_for(int tasks, TaskBody body) = 0;
};

/// A resident team. `threads` 0 means: as many as affinity and cgroup quota allow. The calling thread works
/// too, so a team of 1 starts none. Threads spin for a short while after work, then sleep; nothing is pinned.
std::unique_ptr<Executor> make_thread_team(int threads = 0);

/// Calls `fn(task, worker)` for every task; `fn` stays where it is.
template <class Fn>
void parallel_for(Executor& executor, int tasks, Fn&& fn) {
  using Callable = std::remove_reference_t<Fn>;
  executor.parallel_for(tasks, {&fn, [](void* context, int task, int worker) {
                                  (*static_cast<Callable*>(context))(task, worker);
                                }});
}

}  // namespace sluice
