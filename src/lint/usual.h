// SPDX-License-Identifier: Apache-2.0
// What is usual among numbers, and which of them are not.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice::linting {

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// How far from the median a value must be to be unlike the others: 3 binades, or 8 times as far as half of
/// the others are.
struct Usual {
  double middle = 0, allowed = 3;
  explicit Usual(const std::vector<double>& values) : middle(median(values)) {
    std::vector<double> apart;
    for (const double value : values) apart.push_back(std::abs(value - middle));
    allowed = std::max(3.0, 8 * median(apart));
  }
  bool unlike(double value) const { return std::abs(value - middle) > allowed; }
};

}  // namespace sluice::linting
