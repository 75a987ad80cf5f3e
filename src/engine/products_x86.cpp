// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>

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

__attribute__((target("avx2"))) void four_rows(const float* x, const float* rows, int width, float* out) {
  __m256 low[kRows] = {}, high[kRows] = {};
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const __m256 x_low = _mm256_loadu_ps(x + i), x_high = _mm256_loadu_ps(x + i + 8);
    for (int r = 0; r < kRows; ++r) {
      const float* const row = rows + std::ptrdiff_t{r} * width + i;
      low[r] = _mm256_add_ps(low[r], _mm256_mul_ps(x_low, _mm256_loadu_ps(row)));
      high[r] = _mm256_add_ps(high[r], _mm256_mul_ps(x_high, _mm256_loadu_ps(row + 8)));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float sums[kLanes];
    _mm256_storeu_ps(sums, low[r]);
    _mm256_storeu_ps(sums + 8, high[r]);
    out[r] = finish(sums, x, rows + std::ptrdiff_t{r} * width, i, width);
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
