// SPDX-License-Identifier: Apache-2.0
// The activation over a run of values, compiled without instruction-set flags: activation.h is shared by
// everybody.
#pragma once

#include "sluice/spec.h"

namespace sluice::cpu {

/// out[i] = activation(gate[i], up[i]). `gate` is not read by an activation without one.
struct ActivationRow {
  const float* gate;
  const float* up;
  float* out;
  int count;
};

using Activate = void (*)(const ActivationRow&, const ActivationParams&);

Activate activate(Activation activation);

}  // namespace sluice::cpu
