// SPDX-License-Identifier: Apache-2.0
// Stands in for kernels.cpp where the compiler cannot make AVX2 code.
#include "experts/cpu/avx2/table.h"

namespace sluice::cpu {

const KernelTable* const kAvx2Table = nullptr;
const KernelTable* const kAvx2Int8Table = nullptr;

}  // namespace sluice::cpu
