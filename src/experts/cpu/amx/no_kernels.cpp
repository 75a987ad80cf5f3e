// SPDX-License-Identifier: Apache-2.0
// Stands in for kernels.cpp where the compiler cannot make code for AVX-512.
#include "experts/cpu/amx/table.h"

namespace sluice::cpu {

const KernelTable* const kAmxTable = nullptr;
const KernelTable* const kAmxTilesTable = nullptr;

}  // namespace sluice::cpu
