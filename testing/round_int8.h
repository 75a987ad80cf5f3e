// SPDX-License-Identifier: Apache-2.0
// The rounding of accuracy::Int8Activations as the definition does it, written from its description
// (docs/decisions/030-int8-activations.md) and not from the kernels.
#pragma once

#include "experts/reference/definition.h"

namespace sluice::testing {

/// Rows without reach are rounded as every backend rounds them. Of others, what is within the gate of
/// closeness.h of the middle between two steps may be rounded either way, and a step may be off as much as
/// the largest of its 32 is: that is the slack.
bool round_to_int8(const reference::Row& row, int columns, double* rounded, double* slack);

}  // namespace sluice::testing
