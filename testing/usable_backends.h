// SPDX-License-Identifier: Apache-2.0
// The backends that this machine can run, the reference among them.
#pragma once

#include <vector>

#include "experts/backend.h"

namespace sluice::testing {

/// Those whose kernels are in this build and whose instructions this machine's device has, in the order of
/// backends(); of them those that declare `features`.
std::vector<const Backend*> usable_backends(FeatureSet features = {});

/// The definition itself, which sums in double.
inline bool is_reference(const Backend& backend) { return backend.name == "reference"; }

/// Whether a token has the same bits alone and in any batch. Where that is not declared nobody may test for
/// it.
inline bool is_batch_invariant(const Backend& backend) {
  return backend.can.calls.has(CallModes::of<call::BatchInvariant>());
}

}  // namespace sluice::testing
