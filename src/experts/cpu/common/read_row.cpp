// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/read_row.h"

#include <cstddef>
#include <cstdint>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/f16.h"

namespace sluice::cpu {
namespace {

template <class Element, class ToFloat>
void to_floats(const std::byte* row, int count, ToFloat to_float, float* out) {
  for (int i = 0; i < count; ++i) out[i] = to_float(load<Element>(row + sizeof(Element) * i));
}

}  // namespace

void read_row(const RowsView& rows, int row, float* out) {
  const std::byte* at = rows.data + row * rows.row_stride;
  if (rows.dtype == DType::bf16) return to_floats<std::uint16_t>(at, rows.width, format::bf16_to_float, out);
  if (rows.dtype == DType::f16) return to_floats<std::uint16_t>(at, rows.width, format::f16_to_float, out);
  to_floats<float>(
      at, rows.width, [](float value) { return value; }, out);
}

}  // namespace sluice::cpu
