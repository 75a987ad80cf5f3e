// SPDX-License-Identifier: Apache-2.0
// E4M3 as the OCP 8-bit floating point specification defines it ("fn"): bias 7, no infinity, NaN 0x7F and
// 0xFF, largest 448, smallest 2^-9.
#pragma once

#include <cstdint>

#include "format/minifloat.h"

namespace sluice::format {

inline constexpr float kE4m3Max = 448.0f;

SLUICE_HD constexpr float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = (code & 0x80u) << 24;
  const std::uint32_t magnitude = code & 0x7Fu;
  const std::uint32_t value =
      magnitude == 0x7Fu ? 0x7FC00000u : bits_as<std::uint32_t>(expand_magnitude<3, 7>(magnitude));
  return bits_as<float>(sign | value);
}

/// To nearest, ties to even. Everything beyond 448 saturates, infinity too; NaN stays NaN.
SLUICE_HD constexpr std::uint8_t float_to_e4m3(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint8_t>(sign | 0x7Fu);
  const std::uint32_t code = round_magnitude<3, 7>(magnitude);
  return static_cast<std::uint8_t>(sign | (code < 0x7Eu ? code : 0x7Eu));
}

}  // namespace sluice::format
