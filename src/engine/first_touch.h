// SPDX-License-Identifier: Apache-2.0
// Experts that were mapped from a cache, until each has been looked at. Reading gigabytes before the first
// token would be most of a start, and experts that nobody asks for would be read for nothing; so the
// checksums of an expert are compared when a call first names it, on all threads, just before the kernel
// reads the same bytes. A damaged expert is packed anew, into this process's memory, and the file is taken
// away so that the next start writes another.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/packed_file.h"
#include "experts/backend.h"

namespace sluice {

/// What a layer says of its cache. Calls on several threads may find damage.
class CacheLog {
 public:
  void add(const CacheReport& more);
  CacheReport report() const;

 private:
  mutable std::mutex mutex_;
  CacheReport report_;
};

class FirstTouch {
 public:
  /// What the packing was made from, for repairs.
  struct Source {
    std::vector<ExpertWeights> experts;
    std::shared_ptr<const void> owner;
  };
  /// `packed` has adopted the file's body. All of these outlive it.
  FirstTouch(PackedExperts& packed, PackedFile file, std::string path, Source source, CacheLog& log);

  bool is_of(const PackedExperts& packed) const { return &packed == &packed_; }
  /// Before a kernel runs `call`: looks at the experts that it names first. Allocates nothing unless there is
  /// damage. Throws corrupt_file when a repair gives other bytes than were kept.
  void look(const Forward& call);
  /// After an expert was replaced. It is not looked at then.
  void replaced(std::int32_t local);
  /// Looks at all of them, and repairs none. False when one is damaged.
  bool all_whole(Executor& executor);

 private:
  bool is_new(std::int32_t local) const {
    return local >= 0 && static_cast<std::size_t>(local) < seen_.size() &&
           !seen_[static_cast<std::size_t>(local)].load(std::memory_order_acquire);
  }
  void start_list();
  void list(std::int32_t local);
  void compare(Executor& executor);
  void repair(std::int32_t local, Executor& executor);
  void mark(std::int32_t local);

  PackedExperts& packed_;
  const PackedFile file_;
  const std::string path_;
  Source source_;
  CacheLog& log_;
  std::atomic<std::size_t> left_;
  std::mutex mutex_;                      // of everything below, but for reading seen_
  std::vector<std::atomic<bool>> seen_;   // [experts] whole, or replaced
  std::vector<std::atomic<bool>> wrong_;  // [experts] of those listed
  std::vector<bool> listed_;              // [experts]
  std::vector<std::int32_t> list_;
};

}  // namespace sluice
