// SPDX-License-Identifier: Apache-2.0
// The border between the file compiled for AMX and the rest.
#pragma once

#include "experts/cpu/common/kernel.h"

namespace sluice::cpu {

inline constexpr int kAmxLanes = 16;

/// Experts of few tokens by the kernels of cpu.avx512, or none; null in a build without these kernels.
extern const KernelTable* const kAmxTable;
extern const KernelTable* const kAmxTilesTable;

}  // namespace sluice::cpu
