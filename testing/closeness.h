// SPDX-License-Identifier: Apache-2.0
// Whether a result is the wanted one, counted in roundings instead of by a tolerance somebody liked.
//
// Two kinds of rounding stand behind an element, and each has its own natural size:
//   * operands rounded to `unit` (2^-8 for bf16, 2^-24 for float32): errors that are independent of each
//   other, so all
//     together about unit times the result itself;
//   * sums kept in float32: every addition rounds the running sum, about 2^-24 times the magnitude behind the
//   element,
//     which the reference returns with it (reference/definition.h). Every path of this library sums in
//     float32.
// Gates: NaN and infinities at the same places; no element off by more than 4 unit of its magnitude (finds a
// wrong element); the root mean square of all errors at most 4 of what both kinds explain (finds a scale that
// is 2 % off, which in bf16 no single element shows). Honest float32 kernels measure 0.02 to 1 of the one and
// 0.02 to 0.1 of the other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice::testing {

inline constexpr double kFloat32Unit = 0x1p-24;
inline constexpr double kBf16Unit = 0x1p-8;

/// All are [tokens, width], row-major.
struct Comparison {
  std::span<const float> got;
  std::span<const double> want;
  std::span<const double> magnitude;
  int width = 0;
  double unit = kFloat32Unit;
};

/// The coarsest unit that a backend rounds to, by its declared accuracy, beside what the definition rounds
/// for it (rounding.h). Throws invalid_argument for a name that none has.
double unit_of(std::string_view backend);

struct Closeness {
  static constexpr double kMostUnits = 4;

  std::int64_t misplaced = 0;  // elements where one is NaN or infinite and the other is not the same
  double worst_element_units = 0;
  double rms_units = 0;   // of the token where it is largest
  double rel_l2_max = 0;  // the largest ||got - want|| / ||want|| of a token

  // The first misplaced element, or else the worst.
  std::int64_t token = -1, element = -1;
  double got = 0, want = 0;

  bool ok() const { return misplaced == 0 && worst_element_units <= kMostUnits && rms_units <= kMostUnits; }
  /// "worst 0.61 units at token 3, element 17 (got 1.25, want 1.2500002), rms 0.11 units, rel L2 2.1e-07"
  std::string str() const;
};

/// Throws invalid_argument when the sizes do not fit together.
Closeness closeness(const Comparison& comparison);

}  // namespace sluice::testing
