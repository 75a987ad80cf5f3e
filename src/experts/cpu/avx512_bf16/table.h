// SPDX-License-Identifier: Apache-2.0
// The border between the file compiled for AVX-512 with bf16 and the rest.
#pragma once

#include "experts/cpu/common/kernel.h"

namespace sluice::cpu {

inline constexpr int kAvx512Bf16Lanes = 16;

/// Null in a build without these kernels.
extern const KernelTable* const kAvx512Bf16Table;

}  // namespace sluice::cpu
