// SPDX-License-Identifier: Apache-2.0
// What a call is expected to cost, from sizes and the machine's bandwidth and peak.
#pragma once

#include "sluice/device.h"
#include "sluice/spec.h"

namespace sluice::cpu {

/// Microseconds for `tokens` tokens with uniform routing, on vectors of `lanes` float32.
double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens, int lanes);

}  // namespace sluice::cpu
