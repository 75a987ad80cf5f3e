// SPDX-License-Identifier: Apache-2.0
#include "sluice/tensor.h"

#include <gtest/gtest.h>

#include <set>

namespace sluice {
namespace {

/// All of them; a new one at the end of the enumeration must be added to the table.
std::vector<DType> all_types() {
  std::vector<DType> types;
  for (int i = 0; i <= static_cast<int>(DType::u64); ++i) types.push_back(static_cast<DType>(i));
  return types;
}

TEST(DType, NamesParseToThemselvesAndDiffer) {
  std::set<std::string_view> names;
  for (const DType dtype : all_types()) {
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
    names.insert(name(dtype));
  }
  EXPECT_EQ(names.size(), all_types().size());
}

TEST(DType, SpelledAsSafetensorsSpellsThem) {
  EXPECT_EQ(parse_dtype("BF16"), DType::bf16);
  EXPECT_EQ(parse_dtype("F8_E4M3"), DType::f8_e4m3);
  EXPECT_EQ(parse_dtype("F8_E8M0"), DType::f8_e8m0);
  EXPECT_EQ(parse_dtype("BOOL"), DType::boolean);
  EXPECT_EQ(parse_dtype("I64"), DType::i64);
  EXPECT_FALSE(parse_dtype("bf16"));
  EXPECT_FALSE(parse_dtype("F8"));
  EXPECT_FALSE(parse_dtype(""));
}

TEST(DType, Bits) {
  EXPECT_EQ(bits(DType::f4), 4);
  EXPECT_EQ(bits(DType::f6_e2m3), 6);
  EXPECT_EQ(bits(DType::f6_e3m2), 6);
  for (const DType dtype : {DType::boolean, DType::u8, DType::i8, DType::f8_e5m2, DType::f8_e4m3,
                            DType::f8_e8m0, DType::f8_e4m3fnuz, DType::f8_e5m2fnuz})
    EXPECT_EQ(bits(dtype), 8) << name(dtype);
  for (const DType dtype : {DType::i16, DType::u16, DType::f16, DType::bf16})
    EXPECT_EQ(bits(dtype), 16) << name(dtype);
  for (const DType dtype : {DType::i32, DType::u32, DType::f32}) EXPECT_EQ(bits(dtype), 32) << name(dtype);
  for (const DType dtype : {DType::c64, DType::f64, DType::i64, DType::u64})
    EXPECT_EQ(bits(dtype), 64) << name(dtype);
}

TEST(TensorView, SizesAndShapeText) {
  const TensorView blocks{.dtype = DType::u8, .shape = {32, 5760, 90, 16}};
  EXPECT_EQ(blocks.elements(), std::int64_t{32} * 5760 * 90 * 16);
  EXPECT_EQ(blocks.bytes(), std::size_t{32} * 5760 * 90 * 16);
  EXPECT_EQ(blocks.shape_text(), "[32, 5760, 90, 16]");
  const TensorView scalar{.dtype = DType::f32};
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_EQ(scalar.bytes(), 4u);
  EXPECT_EQ(scalar.shape_text(), "[]");
  const TensorView empty{.dtype = DType::bf16, .shape = {0, 7}};
  EXPECT_EQ(empty.bytes(), 0u);
  const TensorView odd{.dtype = DType::f4, .shape = {3}};
  EXPECT_EQ(odd.bytes(), 2u);
}

}  // namespace
}  // namespace sluice
