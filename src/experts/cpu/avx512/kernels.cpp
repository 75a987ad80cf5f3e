// SPDX-License-Identifier: Apache-2.0
// AVX-512 (F, BW, DQ, VL). Compiled with flags of its own; see kernel.h for what must therefore not appear
// here.
#include "experts/cpu/avx512/table.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/vector_avx512.h"

namespace sluice::cpu {
namespace {

static_assert(Vector::kLanes == kAvx512Lanes);

constexpr KernelTable kTable = make_table<Vector, Fp4>();

}  // namespace

const KernelTable* const kAvx512Table = &kTable;

}  // namespace sluice::cpu
