// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstring>

#include "core/devices.h"
#include "core/machine.h"
#include "engine/products.h"
#include "engine/router.h"

namespace sluice {
namespace {

constexpr int kLanes = 16;  // of `dot`: two registers
constexpr int kRows = 4;    // that share a load of x; eight registers of sums, of sixteen

/// The columns that fill no register, and the pairwise sum, as `dot` does them.
float finish(float* sums, const float* x, const float* row, int first, int width) {
  for (int lane = 0; first + lane < width; ++lane) sums[lane] += x[first + lane] * row[first + lane];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

/// Half of a row's sums: a register of AVX2.
using Half = float __attribute__((vector_size(kLanes * sizeof(float) / 2)));
/// The same in memory. clang drops `aligned` behind the type and would load with what needs 32 bytes.
using Stored __attribute__((vector_size(kLanes * sizeof(float) / 2), aligned(4), may_alias)) = float;
static_assert(alignof(Stored) == 4);

__attribute__((target("avx2"))) void four_rows(const float* x, const float* rows, int width, float* out) {
  const std::ptrdiff_t next = width;
  Half low[kRows] = {}, high[kRows] = {};
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Half x_low = *reinterpret_cast<const Stored*>(x + i);
    const Half x_high = *reinterpret_cast<const Stored*>(x + i + kLanes / 2);
    const float* const at = rows + i;
    low[0] += x_low * *reinterpret_cast<const Stored*>(at);
    low[1] += x_low * *reinterpret_cast<const Stored*>(at + next);
    low[2] += x_low * *reinterpret_cast<const Stored*>(at + 2 * next);
    low[3] += x_low * *reinterpret_cast<const Stored*>(at + 3 * next);
    const float* const behind = at + kLanes / 2;
    high[0] += x_high * *reinterpret_cast<const Stored*>(behind);
    high[1] += x_high * *reinterpret_cast<const Stored*>(behind + next);
    high[2] += x_high * *reinterpret_cast<const Stored*>(behind + 2 * next);
    high[3] += x_high * *reinterpret_cast<const Stored*>(behind + 3 * next);
  }
  for (int r = 0; r < kRows; ++r) {
    float sums[kLanes];
    std::memcpy(sums, &low[r], sizeof low[r]);
    std::memcpy(sums + kLanes / 2, &high[r], sizeof high[r]);
    out[r] = finish(sums, x, rows + r * next, i, width);
  }
}

void products_avx2(const float* x, const float* rows, int count, int width, float* out) {
  int r = 0;
  for (; r + kRows <= count; r += kRows) four_rows(x, rows + std::ptrdiff_t{r} * width, width, out + r);
  for (; r < count; ++r) out[r] = dot(x, rows + std::ptrdiff_t{r} * width, width);
}

void products(const float* x, const float* rows, int count, int width, float* out) {
  for (int r = 0; r < count; ++r) out[r] = dot(x, rows + std::ptrdiff_t{r} * width, width);
}

}  // namespace

Products products_of_this_processor() {
  return this_processor().has.has(InstructionList::of<instruction::Avx2>()) ? products_avx2 : products;
}

}  // namespace sluice
