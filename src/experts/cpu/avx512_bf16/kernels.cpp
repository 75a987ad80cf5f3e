// SPDX-License-Identifier: Apache-2.0
// AVX-512 with products of bf16, of bytes and of words that are added at once (BF16, VNNI) and look-ups of
// bytes (VBMI). Compiled with flags of its own; see kernel.h for what must therefore not appear here.
#include <immintrin.h>

#include "experts/cpu/avx512_bf16/table.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/multiply_bf16.h"
#include "experts/cpu/common/vector_pairs.h"

namespace sluice::cpu {
namespace {

static_assert(Vector::kLanes == kAvx512Bf16Lanes);

struct Bf16Vector : PairVector {
  static Reg dot(Reg sum, Dwords w, Dwords x) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
};

constexpr KernelTable kTable = with_bf16<Bf16Vector>(make_table<Bf16Vector, Fp4>());

}  // namespace

const KernelTable* const kAvx512Bf16Table = &kTable;

}  // namespace sluice::cpu
