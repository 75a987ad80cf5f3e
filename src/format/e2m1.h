// SPDX-License-Identifier: Apache-2.0
// E2M1, the element of MXFP4 and NVFP4: sign, then {0, .5, 1, 1.5, 2, 3, 4, 6}. It has neither infinity nor
// NaN.
#pragma once

#include <array>
#include <cstdint>

#include "format/minifloat.h"

namespace sluice::format {

inline constexpr float kE2m1Max = 6.0f;

/// Reads the low four bits of `code`.
SLUICE_HD constexpr float e2m1_to_float(std::uint8_t code) {
  const float magnitude = expand_magnitude<1, 1>(code & 7u);
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

/// To nearest, ties to even; saturates at 6. There is no code for NaN: it becomes +6, as on the GPUs.
SLUICE_HD constexpr std::uint8_t float_to_e2m1(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 7;
  const std::uint32_t code = round_magnitude<1, 1>(magnitude);
  return static_cast<std::uint8_t>((bits >> 28 & 8u) | (code < 7u ? code : 7u));
}

/// All 16 values, for decoders that look them up.
inline constexpr std::array<float, 16> kE2m1 = [] {
  std::array<float, 16> table{};
  for (std::size_t code = 0; code < table.size(); ++code)
    table[code] = e2m1_to_float(static_cast<std::uint8_t>(code));
  return table;
}();

}  // namespace sluice::format
