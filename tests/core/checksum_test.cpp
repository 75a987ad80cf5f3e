// SPDX-License-Identifier: Apache-2.0
#include "core/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace sluice {
namespace {

std::vector<std::byte> drawn(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) byte = std::byte((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

TEST(Checksum, EveryBitCounts) {
  for (const std::size_t size : {1, 7, 8, 63, 64, 65, 200}) {
    std::vector<std::byte> bytes = drawn(size);
    const std::uint64_t sum = checksum(bytes);
    for (std::size_t at = 0; at < size; ++at)
      for (int bit = 0; bit < 8; ++bit) {
        bytes[at] ^= std::byte(1 << bit);
        EXPECT_NE(checksum(bytes), sum) << size << " bytes, byte " << at << " bit " << bit;
        bytes[at] ^= std::byte(1 << bit);
      }
    EXPECT_EQ(checksum(bytes), sum);
  }
}

/// High bits that cancel each other where multiplying only carries upwards.
TEST(Checksum, PairsOfBitsOfALaneCount) {
  std::vector<std::byte> bytes = drawn(512);
  const std::uint64_t sum = checksum(bytes);
  for (std::size_t first = 7; first < 448; first += 64)
    for (std::size_t second = first + 64; second < 512; second += 64)
      for (const int bit : {0, 7}) {
        bytes[first] ^= std::byte(1 << bit);
        bytes[second] ^= std::byte(1 << bit);
        EXPECT_NE(checksum(bytes), sum) << first << " " << second;
        bytes[first] ^= std::byte(1 << bit);
        bytes[second] ^= std::byte(1 << bit);
      }
}

TEST(Checksum, OrderSizeAndSeedCount) {
  std::set<std::uint64_t> sums;
  const std::vector<std::byte> zeros(300);
  for (std::size_t size = 0; size <= zeros.size(); ++size) sums.insert(checksum({zeros.data(), size}));
  for (std::uint64_t seed = 1; seed <= 100; ++seed) sums.insert(checksum(zeros, seed));
  EXPECT_EQ(sums.size(), 401u);

  std::vector<std::byte> bytes = drawn(256);
  const std::uint64_t sum = checksum(bytes);
  for (std::size_t at = 0; at + 64 < bytes.size(); at += 8) {
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                     bytes.begin() + static_cast<std::ptrdiff_t>(at) + 8,
                     bytes.begin() + static_cast<std::ptrdiff_t>(at) + 64);
    EXPECT_NE(checksum(bytes), sum) << at;
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                     bytes.begin() + static_cast<std::ptrdiff_t>(at) + 8,
                     bytes.begin() + static_cast<std::ptrdiff_t>(at) + 64);
  }
}

}  // namespace
}  // namespace sluice
