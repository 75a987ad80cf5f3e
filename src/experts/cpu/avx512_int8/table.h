// SPDX-License-Identifier: Apache-2.0
// The border between the file compiled for AVX-512 with VNNI and the rest.
#pragma once

#include "experts/cpu/common/kernel.h"

namespace sluice::cpu {

inline constexpr int kAvx512Int8Lanes = 16;

/// Null in a build without these kernels.
extern const KernelTable* const kAvx512Int8Table;

}  // namespace sluice::cpu
