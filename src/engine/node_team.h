// SPDX-License-Identifier: Apache-2.0
// A leader thread a node, each with a team of threads of its own. What a leader and its team allocate and
// touch first lies on their node; the threads that call are left where they are.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "sluice/executor.h"
#include "sluice/nodes.h"

namespace sluice {

class NodeTeam {
 public:
  /// `threads` of a node, its leader included; 0: as many as it has processors.
  NodeTeam(const std::vector<MemoryNode>& nodes, int threads);
  ~NodeTeam();
  NodeTeam(const NodeTeam&) = delete;
  NodeTeam& operator=(const NodeTeam&) = delete;

  struct Member {
    MemoryNode node;
    bool pinned = false, preferred = false;
    std::shared_ptr<Executor> executor = {};  // to be used by the leader
  };
  const std::vector<Member>& members() const { return members_; }

  /// Every leader calls `body(node)` once, at the same time; returns when all have. Throws what the first of
  /// them threw. One call at a time: others wait.
  template <class Body>
  void each(Body&& body) {
    using Callable = std::remove_reference_t<Body>;
    run({&body, [](void* context, int node, int) { (*static_cast<Callable*>(context))(node); }});
  }

 private:
  void run(TaskBody body);
  void wait_for_leaders(std::unique_lock<std::mutex>& lock);
  void lead(int node, int threads);
  void dismiss();

  std::vector<Member> members_;
  std::vector<std::exception_ptr> errors_;  // of each leader's last body
  std::mutex callers_, state_;
  std::condition_variable called_, finished_;
  TaskBody body_{};
  // Changed with state_ held, looked at without it while spinning.
  std::atomic<std::uint64_t> job_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> dismissed_{false};
  std::chrono::microseconds spin_{0};
  std::vector<std::thread> leaders_;  // last: they use everything above
};

}  // namespace sluice
