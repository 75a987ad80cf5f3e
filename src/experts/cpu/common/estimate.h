// SPDX-License-Identifier: Apache-2.0
// What a call is expected to cost, from sizes and the machine's bandwidth and peak.
#pragma once

#include "sluice/device.h"
#include "sluice/spec.h"

namespace sluice::cpu {

/// How a backend multiplies.
struct Arithmetic {
  int lanes;                // float32 of a vector
  double rate = 1;          // multiply-adds at once, in those of a vector of float32
  double times = 1;         // of the time that these give
  double bandwidth = 0.85;  // of the bandwidth, what one token's products reach (EPYC Milan and Zen 5)
};

/// Microseconds for `tokens` tokens with uniform routing.
double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens,
                   const Arithmetic& arithmetic);

}  // namespace sluice::cpu
