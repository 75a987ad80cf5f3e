// SPDX-License-Identifier: Apache-2.0
// Views of memory that somebody else owns. There is no arithmetic here and never will be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Element types of files and of the forward call, spelled as safetensors spells them.
enum class DType : std::uint8_t {
  // clang-format off
  boolean, u8, i8, f8_e5m2, f8_e4m3, f8_e8m0, f8_e4m3fnuz, f8_e5m2fnuz, f6_e2m3, f6_e3m2, f4,
  i16, u16, f16, bf16, i32, u32, f32, c64, f64, i64, u64,
  // clang-format on
};

/// "BF16", "F8_E4M3", ...
std::string_view name(DType dtype);
/// Bits an element: 4, 6, 8, 16, 32 or 64.
int bits(DType dtype);
std::optional<DType> parse_dtype(std::string_view text);

/// A tensor of a file: dense, row-major, unaligned.
struct TensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape = {};

  std::int64_t elements() const;
  std::size_t bytes() const;
  /// "[32, 5760, 90, 16]"
  std::string shape_text() const;
};

/// The input of a forward call: `rows` rows of `width` elements, bf16, f16 or f32, `row_stride` bytes apart.
struct RowsView {
  const std::byte* data = nullptr;
  DType dtype = DType::bf16;
  int rows = 0;
  int width = 0;
  std::ptrdiff_t row_stride = 0;
};

/// A vector with a stride: element i is at `data + i * stride` bytes. Empty when `data` is null.
struct VectorView {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t size = 0;
  std::ptrdiff_t stride = 0;

  explicit operator bool() const { return data != nullptr; }
};

}  // namespace sluice
