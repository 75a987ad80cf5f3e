// SPDX-License-Identifier: Apache-2.0
// Drawn numbers that are the same on every machine and with every standard library: SplitMix64, and
// Box-Muller for normal ones (std::normal_distribution may differ between libraries).
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace sluice::testing {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// In (0, 1]: never 0, so that its logarithm is finite.
  double uniform() { return static_cast<double>((bits() >> 11) + 1) * 0x1p-53; }

  /// In [0, bound). The bias of the remainder is below bound / 2^64.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(bound));
  }

  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  /// `count` normal numbers of standard deviation `deviation`.
  std::vector<float> normals(std::int64_t count, double deviation) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(deviation * normal());
    return values;
  }

 private:
  std::uint64_t state_;
};

}  // namespace sluice::testing
