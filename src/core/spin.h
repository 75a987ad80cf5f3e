// SPDX-License-Identifier: Apache-2.0
// Waiting without sleeping, for a while.
#pragma once

#include <chrono>

namespace sluice {

/// Longer than the gap between the phases of one layer, shorter than a time slice. A sleeping thread costs
/// the next job a wake-up of some 20 to 50 us.
inline constexpr std::chrono::microseconds kSpin{50};

/// Returns true when `ready()` became true while spinning. Reading the clock takes some 20 ns and so is the
/// pause between two looks at the shared line.
template <class Ready>
bool spin_until(std::chrono::microseconds limit, Ready&& ready) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    if (ready()) return true;
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

}  // namespace sluice
