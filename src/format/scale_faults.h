// SPDX-License-Identifier: Apache-2.0
// Which numbers are scales. Loading refuses and lint counts by this one definition.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "format/geometry.h"

namespace sluice::format {

/// Which numbers are scales: positive ones, or any but zero. Infinity and NaN never are.
enum class Signs : bool { positive, both };

/// The signs that scales of a format may have: AutoRound's symmetric integers have negative scales where that
/// reaches the code -2^(bits - 1) on the side of the largest weight.
inline Signs signs_of(Format format) { return is_integer(format) ? Signs::both : Signs::positive; }

enum class ScaleFault : std::uint8_t { zero, negative, infinite, nan };
inline constexpr int kScaleFaults = 4;

/// What is wrong with a scale, or nothing.
inline std::optional<ScaleFault> scale_fault(float value, Signs signs = Signs::positive) {
  if (std::isnan(value)) return ScaleFault::nan;
  if (value == 0) return ScaleFault::zero;
  if (std::isinf(value)) return ScaleFault::infinite;
  if (value < 0 && signs == Signs::positive) return ScaleFault::negative;
  return std::nullopt;
}

/// The code of the error that it is: "scale_nan", and of E8M0, where it is one byte, "scale_e8m0_nan".
constexpr std::string_view fault_code(ScaleFault fault, DType read_as) {
  switch (fault) {
    case ScaleFault::zero:
      return "scale_zero";
    case ScaleFault::negative:
      return "scale_negative";
    case ScaleFault::infinite:
      return "scale_infinite";
    case ScaleFault::nan:
      break;
  }
  return read_as == DType::f8_e8m0 ? "scale_e8m0_nan" : "scale_nan";
}

}  // namespace sluice::format
