// SPDX-License-Identifier: Apache-2.0
// An element of a row of any input type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/bf16.h"
#include "format/f16.h"
#include "sluice/tensor.h"

namespace sluice::cuda {

__device__ inline float element(DType dtype, const std::byte* row, int column) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(row)[column];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[column];
  return dtype == DType::bf16 ? format::bf16_to_float(bits) : format::f16_to_float(bits);
}

/// Column k of what is multiplied: of the input's `width` columns, or of an order of them, times a weight; a
/// zero beyond them and where the order has -1.
struct InputColumns {
  DType dtype;
  int width;
  const std::int32_t* order;  // null: as they are
  const float* weight;        // null: one
};
__device__ inline float input_value(const InputColumns& in, const std::byte* row, int k) {
  const int column = k >= in.width ? -1 : in.order != nullptr ? in.order[k] : k;
  if (column < 0) return 0;
  const float value = element(in.dtype, row, column);
  return in.weight == nullptr ? value : __fmul_rn(*in.weight, value);
}

}  // namespace sluice::cuda
