// SPDX-License-Identifier: Apache-2.0
// The backends that this machine can run, the reference among them.
#pragma once

#include <vector>

#include "experts/backend.h"

namespace sluice::testing {

/// Those whose kernels are in this build and whose instructions this processor has, in the order of
/// backends().
std::vector<const Backend*> usable_backends();

}  // namespace sluice::testing
