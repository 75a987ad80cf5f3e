// SPDX-License-Identifier: Apache-2.0
// A buffer that is read cold, in random slices or from end to end: what memory gives at most.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/executor.h"
#include "testing/draw.h"
#include "testing/roof_kernels.h"

namespace sluice::testing {

/// Wishes: the system may not have huge pages to give.
enum class Pages : std::uint8_t { huge, small };

class RoofMemory {
 public:
  /// `bytes` 0: as large as it takes to be cold, 512 MiB on most machines. Every page has been written.
  /// Throws out_of_memory.
  RoofMemory(Executor& executor, ReadAll read, Pages pages, std::size_t bytes);

  /// Microseconds of reading `window_bytes` in random slices; each slice is read once before any is again.
  double read_slices();
  /// Microseconds of reading as much from end to end, a stretch a worker.
  double read_sequentially();

  std::size_t bytes() const { return bytes_; }
  /// Twice the last-level cache and more, so that a window evicts what was there.
  std::size_t window_bytes() const { return window_bytes_; }
  /// The part of the buffer that is in huge pages now; 0 where the system does not say.
  double huge_part() const;

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* at) const;
  };

  std::size_t deal();
  const std::byte* at(std::size_t start) const { return buffer_.get() + start; }

  Executor& executor_;
  ReadAll read_;
  std::size_t bytes_, window_bytes_;  // whole slices
  std::unique_ptr<std::byte, Unmap> buffer_;
  std::vector<std::size_t> deck_;  // starts of slices, shuffled
  std::size_t dealt_ = 0, next_ = 0;
  Draw draw_{7};
  std::atomic<std::uint64_t> sink_{0};  // so that no result is unused
};

/// Microseconds on the clock that all measuring uses.
double microseconds_now();

}  // namespace sluice::testing
