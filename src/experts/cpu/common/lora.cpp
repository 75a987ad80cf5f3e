// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/lora.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cpu {
namespace {

constexpr int kSums = 16;  // of every sixteenth element, which compilers make vectors of

struct F32 {
  using Stored = float;
  static float to_float(float value) { return value; }
};
struct Bf16 {
  using Stored = std::uint16_t;
  static float to_float(std::uint16_t bits) { return format::bf16_to_float(bits); }
};
struct F16 {
  using Stored = std::uint16_t;
  static float to_float(std::uint16_t bits) { return format::f16_to_float(bits); }
};

/// Calls f.operator()<Element>() for the type of `matrix`, which was validated.
template <class F>
void visit(const LoraMatrix& matrix, F f) {
  if (matrix.dtype == DType::bf16) return f.template operator()<Bf16>();
  if (matrix.dtype == DType::f16) return f.template operator()<F16>();
  f.template operator()<F32>();
}

template <class Element>
float element(const std::byte* at) {
  return Element::to_float(load<typename Element::Stored>(at));
}

template <class Element>
using Dense = std::integral_constant<std::ptrdiff_t, sizeof(typename Element::Stored)>;

/// Vectors of any width: compilers make them of what the instruction set has.
using Floats [[gnu::vector_size(kSums * 4)]] = float;
using Words [[gnu::vector_size(kSums * 4)]] = std::uint32_t;
using Halves [[gnu::vector_size(kSums * 2)]] = std::uint16_t;

/// kSums elements, `stride` bytes apart.
template <class Element, class Stride>
inline void read(const std::byte* at, Stride stride, Floats& out) {
  if constexpr (std::is_same_v<Stride, Dense<F32>> && std::is_same_v<Element, F32>) {
    std::memcpy(&out, at, sizeof(out));
  } else if constexpr (std::is_same_v<Stride, Dense<Bf16>> && std::is_same_v<Element, Bf16>) {
    Halves stored;
    std::memcpy(&stored, at, sizeof(stored));
    const Words words = __builtin_convertvector(stored, Words) << 16;
    std::memcpy(&out, &words, sizeof(out));
  } else {
    for (int j = 0; j < kSums; ++j) out[j] = element<Element>(at + j * stride);
  }
}

/// The same sum for any stride. g++ 12 makes better code of an array here than of Floats.
template <class Element, class Stride>
float dot(const std::byte* row, Stride stride, const float* x, std::int64_t size) {
  float sums[kSums] = {};
  std::int64_t k = 0;
  for (; k + kSums <= size; k += kSums)
    for (int j = 0; j < kSums; ++j) sums[j] += element<Element>(row + (k + j) * stride) * x[k + j];
  for (int j = 0; k + j < size; ++j) sums[j] += element<Element>(row + (k + j) * stride) * x[k + j];
  for (int width = kSums / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
  return sums[0];
}

/// to[i] += B[i] . low, kSums rows at a time.
template <class Element, class Stride>
void add_rows(const LoraMatrix& b, Stride stride, const float* low, RowRange rows, float* to) {
  const std::byte* block = b.data + rows.first * stride;
  int i = 0;
  for (; i + kSums <= rows.count; i += kSums) {
    Floats sums = {}, values;
    for (std::int64_t r = 0; r < b.cols; ++r) {
      read<Element>(block + i * stride + r * b.col_stride, stride, values);
      sums += values * low[r];
    }
    for (int j = 0; j < kSums; ++j) to[i + j] += sums[j];
  }
  for (; i < rows.count; ++i) {
    float sum = 0;
    for (std::int64_t r = 0; r < b.cols; ++r)
      sum += element<Element>(block + i * stride + r * b.col_stride) * low[r];
    to[i] += sum;
  }
}

}  // namespace

void project(const LoraDelta& delta, const float* x, float* low) {
  const LoraMatrix& a = delta.a;
  if (!delta) return;
  visit(a, [&]<class Element>() {
    for (std::int64_t r = 0; r < a.rows; ++r) {
      const std::byte* row = a.data + r * a.row_stride;
      const bool dense = a.col_stride == Dense<Element>::value;
      low[r] = delta.scale * (dense ? dot<Element>(row, Dense<Element>{}, x, a.cols)
                                    : dot<Element>(row, a.col_stride, x, a.cols));
    }
  });
}

void add_delta(const LoraDelta& delta, const float* low, RowRange rows, float* to) {
  const LoraMatrix& b = delta.b;
  if (!delta) return;
  visit(b, [&]<class Element>() {
    if (b.row_stride == Dense<Element>::value) {
      add_rows<Element>(b, Dense<Element>{}, low, rows, to);
    } else {
      add_rows<Element>(b, b.row_stride, low, rows, to);
    }
  });
}

}  // namespace sluice::cpu
