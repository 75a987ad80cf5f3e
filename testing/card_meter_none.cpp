// SPDX-License-Identifier: Apache-2.0
// In place of testing/cuda in builds without CUDA.
#include "testing/card_meter.h"

namespace sluice::testing {

const OpenCard kOpenCard = nullptr;

}  // namespace sluice::testing
