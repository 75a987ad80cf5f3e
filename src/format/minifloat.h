// SPDX-License-Identifier: Apache-2.0
// What all small floating-point types have in common: kMantissa bits of mantissa below an exponent of bias
// kBias, and subnormals. Magnitudes only; signs, infinities, NaN and saturation are the business of the type.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "core/hd.h"

namespace sluice::format {

/// The float32 that magnitude code `code` stands for; always exact.
template <int kMantissa, int kBias>
SLUICE_HD constexpr float expand_magnitude(std::uint32_t code) {
  if (code >> kMantissa == 0) {
    constexpr std::uint32_t unit = std::uint32_t{127 + 1 - kBias - kMantissa} << 23;
    return static_cast<float>(code) * bits_as<float>(unit);
  }
  return bits_as<float>((code << (23 - kMantissa)) + (std::uint32_t{127 - kBias} << 23));
}

/// The code of the float32 with bits `magnitude` (finite, no sign), to nearest, ties to even. Codes go on
/// upwards beyond the largest one of the type, so that the caller can saturate or overflow.
template <int kMantissa, int kBias>
SLUICE_HD constexpr std::uint32_t round_magnitude(std::uint32_t magnitude) {
  constexpr int shift = 23 - kMantissa;
  constexpr std::uint32_t smallest_normal = std::uint32_t{127 + 1 - kBias} << 23;
  if (magnitude < smallest_normal) {
    // A float32 this large has the spacing of the type's subnormals, so the addition rounds as we want.
    constexpr std::uint32_t anchor = std::uint32_t{127 + 24 - kBias - kMantissa} << 23;
    return bits_as<std::uint32_t>(bits_as<float>(magnitude) + bits_as<float>(anchor)) - anchor;
  }
  const std::uint32_t odd = magnitude >> shift & 1;
  const std::uint32_t rounded = magnitude + ((std::uint32_t{1} << (shift - 1)) - 1) + odd;
  return (rounded >> shift) - (std::uint32_t{127 - kBias} << kMantissa);
}

}  // namespace sluice::format
