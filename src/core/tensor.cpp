// SPDX-License-Identifier: Apache-2.0
// The element types, in one table.
#include "sluice/tensor.h"

#include <array>

namespace sluice {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int bits;
};

/// In the order of the enumeration, which the assertion below holds us to.
constexpr std::array kRows = {
    Row{DType::boolean, "BOOL", 8},
    Row{DType::u8, "U8", 8},
    Row{DType::i8, "I8", 8},
    Row{DType::f8_e5m2, "F8_E5M2", 8},
    Row{DType::f8_e4m3, "F8_E4M3", 8},
    Row{DType::f8_e8m0, "F8_E8M0", 8},
    Row{DType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    Row{DType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    Row{DType::f6_e2m3, "F6_E2M3", 6},
    Row{DType::f6_e3m2, "F6_E3M2", 6},
    Row{DType::f4, "F4", 4},
    Row{DType::i16, "I16", 16},
    Row{DType::u16, "U16", 16},
    Row{DType::f16, "F16", 16},
    Row{DType::bf16, "BF16", 16},
    Row{DType::i32, "I32", 32},
    Row{DType::u32, "U32", 32},
    Row{DType::f32, "F32", 32},
    Row{DType::c64, "C64", 64},
    Row{DType::f64, "F64", 64},
    Row{DType::i64, "I64", 64},
    Row{DType::u64, "U64", 64},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  return true;
}
static_assert(in_order() && kRows.back().dtype == DType::u64);

const Row& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view name(DType dtype) { return row(dtype).name; }

int bits(DType dtype) { return row(dtype).bits; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const Row& known : kRows)
    if (known.name == text) return known.dtype;
  return std::nullopt;
}

std::int64_t TensorView::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::size_t TensorView::bytes() const {
  return (static_cast<std::size_t>(elements()) * static_cast<std::size_t>(bits(dtype)) + 7) / 8;
}

std::string TensorView::shape_text() const {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

}  // namespace sluice
