// SPDX-License-Identifier: Apache-2.0
// What a comparison asks the definition to round, so that the rest can be judged in roundings of float32.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace sluice::testing {

enum class Rounding : std::uint8_t {
  none,
  int8_activations,  // inputs and the intermediate: accuracy::Int8Activations
};

/// By the accuracy that a backend declares.
Rounding rounding_of(std::string_view backend);

/// What int8 may cost a layer, as a relative L2 of a token. A step is a 127th of the largest of 32, a
/// rounding is off by a step / sqrt(12), and the largest is at most sqrt(32) times the root mean square: so a
/// matrix is off by at most 1.29e-2, and gate, up and down together by three times that.
inline const double kInt8RelL2 = 3 * std::sqrt(32.0 / 12.0) / 127;

}  // namespace sluice::testing
