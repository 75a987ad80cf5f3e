// SPDX-License-Identifier: Apache-2.0
// One row against several: what a dense matrix does most. Faster where the processor allows, with the bits of
// `dot` (router.h) everywhere: the same sixteen sums, no fused multiply-add, added in the same order.
#pragma once

namespace sluice {

/// out[r] = dot(x, rows + r * width, width) for r in [0, count).
using Products = void (*)(const float* x, const float* rows, int count, int width, float* out);

/// products_x86.cpp, or products_other.cpp where there is nothing faster than `dot`.
Products products_of_this_processor();

}  // namespace sluice
