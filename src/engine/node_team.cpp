// SPDX-License-Identifier: Apache-2.0
// A mutex and condition variables for who sleeps, and a look without them first, as the teams below do it: to
// wake a sleeping leader takes some 20 us, and a token's layer on two sockets not much more.
#include "engine/node_team.h"

#include "core/nodes.h"
#include "core/spin.h"
#include "sluice/device.h"

namespace sluice {

NodeTeam::NodeTeam(const std::vector<MemoryNode>& nodes, int threads) {
  errors_.resize(nodes.size());
  for (const MemoryNode& node : nodes) members_.push_back({.node = node});
  running_ = static_cast<int>(nodes.size());
  try {
    for (std::size_t node = 0; node < nodes.size(); ++node)
      leaders_.emplace_back([this, node, threads] { lead(static_cast<int>(node), threads); });
    std::unique_lock lock(state_);
    wait_for_leaders(lock);
    int workers = 0;
    for (const Member& member : members_) workers += member.executor->workers();
    // With more threads than cores a spinning one would keep a working one off its core.
    if (workers <= detect().cores) spin_ = kSpin;
  } catch (...) {
    dismiss();
    throw;
  }
}

NodeTeam::~NodeTeam() { dismiss(); }

void NodeTeam::dismiss() {
  {
    const std::lock_guard lock(state_);
    dismissed_ = true;
  }
  called_.notify_all();
  for (std::thread& leader : leaders_) leader.join();
  leaders_.clear();
}

void NodeTeam::run(TaskBody body) {
  const std::lock_guard one_call_at_a_time(callers_);
  std::unique_lock lock(state_);
  body_ = body;
  running_ = static_cast<int>(members_.size());
  ++job_;
  called_.notify_all();
  wait_for_leaders(lock);
}

/// Throws what the first of them threw.
void NodeTeam::wait_for_leaders(std::unique_lock<std::mutex>& lock) {
  const auto all_done = [&] { return running_ == 0; };
  lock.unlock();
  spin_until(spin_, all_done);
  lock.lock();
  finished_.wait(lock, all_done);
  for (const std::exception_ptr& error : errors_)
    if (error) std::rethrow_exception(error);
}

/// The team is made by the leader: its threads inherit where it runs and where it allocates.
void NodeTeam::lead(int node, int threads) {
  Member& member = members_[static_cast<std::size_t>(node)];
  std::exception_ptr& error = errors_[static_cast<std::size_t>(node)];
  try {
    member.pinned = !member.node.cpus.empty() && run_on(member.node.cpus);
    member.preferred = prefer_memory_of(member.node.id);
    member.executor = make_thread_team(threads);
  } catch (...) {
    error = std::current_exception();
  }
  std::unique_lock lock(state_);
  for (std::uint64_t seen = 0; true;) {
    if (--running_ == 0) finished_.notify_all();
    const auto called = [&] { return dismissed_ || job_ != seen; };
    const std::chrono::microseconds spin = spin_;
    lock.unlock();
    spin_until(spin, called);
    lock.lock();
    called_.wait(lock, called);
    if (dismissed_) return;
    seen = job_;
    const TaskBody body = body_;
    lock.unlock();
    error = nullptr;
    try {
      body.call(body.context, node, node);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
  }
}

}  // namespace sluice
