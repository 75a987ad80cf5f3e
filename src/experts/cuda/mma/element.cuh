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

}  // namespace sluice::cuda
