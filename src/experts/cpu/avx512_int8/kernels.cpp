// SPDX-License-Identifier: Apache-2.0
// AVX-512 with products of bytes that are added at once (VNNI). Compiled with flags of its own; see kernel.h
// for what must therefore not appear here.
#include <immintrin.h>

#include "experts/cpu/avx512_int8/table.h"
#include "experts/cpu/common/multiply_int8.h"
#include "experts/cpu/common/vector_avx512.h"

namespace sluice::cpu {
namespace {

static_assert(Vector::kLanes == kAvx512Int8Lanes);

struct VnniVector : Vector {
  /// Unsigned bytes of `codes` times signed ones of `x`, four neighbours added; nothing saturates.
  static Dwords dot_bytes(Dwords sum, Dwords codes, Dwords x) {
    return here(_mm512_dpbusd_epi32(sum, codes, x));
  }
  static Dwords dot_words(Dwords sum, Dwords codes, Dwords x) { return _mm512_dpwssd_epi32(sum, codes, x); }
};

constexpr KernelTable kTable = make_int8_table<VnniVector, Fp4>();

}  // namespace

const KernelTable* const kAvx512Int8Table = &kTable;

}  // namespace sluice::cpu
