// SPDX-License-Identifier: Apache-2.0
// Stands in for kernels.cpp where the compiler cannot make AVX-512 code.
#include "experts/cpu/avx512_int8/table.h"

namespace sluice::cpu {

const KernelTable* const kAvx512Int8Table = nullptr;

}  // namespace sluice::cpu
