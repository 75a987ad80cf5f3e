// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a float32.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "core/hd.h"

namespace sluice::format {

SLUICE_HD constexpr float bf16_to_float(std::uint16_t bits) {
  return bits_as<float>(std::uint32_t{bits} << 16);
}

/// To nearest, ties to even; overflow gives infinity, as IEEE 754 has it. NaN stays NaN and becomes quiet.
SLUICE_HD constexpr std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

}  // namespace sluice::format
