// SPDX-License-Identifier: Apache-2.0
// The border between the file compiled for AVX2 and the rest.
#pragma once

#include "experts/cpu/common/kernel.h"

namespace sluice::cpu {

inline constexpr int kAvx2Lanes = 8;

/// Null in a build without these kernels.
extern const KernelTable* const kAvx2Table;
/// Of rows that are rounded to int8.
extern const KernelTable* const kAvx2Int8Table;

}  // namespace sluice::cpu
