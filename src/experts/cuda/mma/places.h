// SPDX-License-Identifier: Apache-2.0
// Parts of one piece of memory.
#pragma once

#include <cstddef>

namespace sluice::cuda {

/// Hands out places at multiples of 256 bytes, or only counts them where there is no memory.
class Places {
 public:
  explicit Places(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(std::size_t count) {
    std::byte* at = memory_ == nullptr ? nullptr : memory_ + end_;
    end_ = (end_ + count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  std::size_t end() const { return end_; }

 private:
  std::byte* memory_;
  std::size_t end_ = 0;
};

}  // namespace sluice::cuda
