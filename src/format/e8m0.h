// SPDX-License-Identifier: Apache-2.0
// E8M0, the scale of the MX formats: code b is 2^(b - 127), 255 is NaN. There is no zero and no sign.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "core/hd.h"

namespace sluice::format {

inline constexpr std::uint8_t kE8m0One = 127;

/// Exact: code 0 is the subnormal float32 2^-127.
SLUICE_HD constexpr float e8m0_to_float(std::uint8_t code) {
  if (code == 0) return bits_as<float>(std::uint32_t{0x00400000u});
  return bits_as<float>(code == 255 ? 0x7FC00000u : std::uint32_t{code} << 23);
}

/// The code of 2^exponent, or the nearest one there is.
SLUICE_HD constexpr std::uint8_t e8m0_from_exponent(int exponent) {
  const int code = exponent + 127;
  return static_cast<std::uint8_t>(code < 0 ? 0 : code > 254 ? 254 : code);
}

}  // namespace sluice::format
