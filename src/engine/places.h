// SPDX-License-Identifier: Apache-2.0
// Places in a caller's workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

inline constexpr std::size_t kAlign = 64;  // a cache line; what Forward::workspace promises

inline std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Hands out places one behind the other.
class Places {
 public:
  explicit Places(std::size_t start) : end_(start) {}
  template <class T>
  std::size_t take(std::size_t count) {
    return take_bytes(count * sizeof(T));
  }
  std::size_t take_bytes(std::size_t bytes) {
    const std::size_t at = end_;
    end_ += aligned(bytes);
    return at;
  }
  std::size_t end() const { return end_; }

 private:
  std::size_t end_;
};

inline std::byte* aligned_start(std::span<std::byte> workspace) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  return workspace.data() + (aligned(address) - address);
}

/// The place `at` bytes from the aligned start.
template <class T>
T* place(std::span<std::byte> workspace, std::size_t at) {
  return reinterpret_cast<T*>(aligned_start(workspace) + at);
}

}  // namespace sluice
