// SPDX-License-Identifier: Apache-2.0
#include "core/checksum.h"

#include <bit>

#include "core/bits.h"

namespace sluice {
namespace {

/// Lanes that do not wait for each other: a step takes some 5 cycles, and one multiplication starts a cycle.
constexpr std::size_t kLanes = 8;
constexpr std::size_t kStripe = kLanes * sizeof(std::uint64_t);

// Odd, so that multiplying loses nothing, and with bits all over.
constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t kFinal = 0xD6E8FEB86659FD93u;

/// A bijection of `sum`, and of `word`. Multiplying carries upwards only, so the halves change places: a high
/// bit reaches all others two words later.
std::uint64_t step(std::uint64_t sum, std::uint64_t word) {
  return std::rotl((sum ^ word) * kMultiplier, 32);
}

std::uint64_t spread(std::uint64_t sum) {
  sum = (sum ^ sum >> 32) * kFinal;
  sum = (sum ^ sum >> 29) * kFinal;
  return sum ^ sum >> 32;
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::uint64_t sums[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] = spread(seed + lane + 1);
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kStripe; left -= kStripe, at += kStripe)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] = step(sums[lane], load<std::uint64_t>(at + 8 * lane));
  // The rest, with zeros behind it; the size tells those from zeros that are there.
  std::byte rest[kStripe] = {};
  if (left != 0) std::memcpy(rest, at, left);
  std::uint64_t all = spread(seed ^ bytes.size());
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    all = step(spread(all), spread(step(sums[lane], load<std::uint64_t>(rest + 8 * lane))));
  return spread(all);
}

}  // namespace sluice
