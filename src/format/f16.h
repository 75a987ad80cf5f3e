// SPDX-License-Identifier: Apache-2.0
// IEEE 754 binary16.
#pragma once

#include <cstdint>

#include "format/minifloat.h"

namespace sluice::format {

SLUICE_HD constexpr float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFu;
  const std::uint32_t value = magnitude >= 0x7C00u
                                  ? 0x7F800000u | magnitude << 13  // infinity and NaN
                                  : bits_as<std::uint32_t>(expand_magnitude<10, 15>(magnitude));
  return bits_as<float>(sign | value);
}

/// To nearest, ties to even; overflow gives infinity. NaN stays NaN and becomes quiet.
SLUICE_HD constexpr std::uint16_t float_to_f16(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude == 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
  const std::uint32_t code = round_magnitude<10, 15>(magnitude);
  return static_cast<std::uint16_t>(sign | (code < 0x7C00u ? code : 0x7C00u));
}

}  // namespace sluice::format
