// SPDX-License-Identifier: Apache-2.0
// The scale rule that the MX formats share. Only src/format includes this.
#pragma once

#include <cmath>
#include <cstddef>

#include "core/bits.h"
#include "format/e8m0.h"

namespace sluice::format {

/// Stores the scale of a group with this largest magnitude, for elements whose largest power of two is
/// 2^kElementExponent, and returns it.
template <int kElementExponent>
double pick_mx_scale(float amax, std::byte* at) {
  const std::uint8_t code = amax == 0 ? kE8m0One : e8m0_from_exponent(std::ilogb(amax) - kElementExponent);
  store(at, code);
  return e8m0_to_float(code);
}

}  // namespace sluice::format
