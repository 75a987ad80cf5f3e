// SPDX-License-Identifier: Apache-2.0
// A float32 as a sum of three bf16, so that products on the tensor cores lose nothing of it.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "core/hd.h"
#include "format/bf16.h"

namespace sluice::cuda {

inline constexpr int kMostTerms = 3;

/// x = t0 + t1 + t2, each the next eight significant bits, exactly but for what is below 2^-133. One term
/// holds a bf16 and two an f16. Infinities and NaN are in the first alone.
struct Terms {
  std::uint16_t of[kMostTerms];
};

SLUICE_HD Terms split(float x) {
  Terms terms{};
  const std::uint32_t bits = bits_as<std::uint32_t>(x);
  if ((bits & 0x7F800000u) == 0x7F800000u) {
    const bool nan = (bits & 0x007FFFFFu) != 0;
    terms.of[0] = static_cast<std::uint16_t>(bits >> 16 | (nan ? 0x40u : 0u));
    return terms;
  }
  float rest = x;
  for (std::uint16_t& term : terms.of) {
    const std::uint32_t upper = bits_as<std::uint32_t>(rest) & 0xFFFF0000u;
    term = static_cast<std::uint16_t>(upper >> 16);
    rest -= bits_as<float>(upper);
  }
  return terms;
}

/// As so many terms: all that hold it, or one that it is rounded to.
SLUICE_HD Terms as_terms(float x, int terms) {
  if (terms > 1) return split(x);
  return {{format::float_to_bf16(x)}};
}

}  // namespace sluice::cuda
