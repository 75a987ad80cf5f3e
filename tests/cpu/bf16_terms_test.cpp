// SPDX-License-Identifier: Apache-2.0
// Rows as terms of bf16: their sum is the row to the bit, and rows that terms would lose something of are
// refused.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/bits.h"
#include "experts/cpu/common/bf16_pairs.h"
#include "format/f16.h"
#include "gtest/gtest.h"
#include "testing/draw.h"

namespace sluice::testing {
namespace {

constexpr int kColumns = 48, kStride = 32;

struct Written {
  int terms;
  std::vector<std::int32_t> pairs;
};

Written write(const std::vector<float>& row, int most, cpu::PairOrder order = cpu::PairOrder::neighbours) {
  Written out{0, std::vector<std::int32_t>(3 * kStride, -1)};
  out.terms = cpu::to_bf16_terms(row.data(), kColumns, order, {out.pairs.data(), kStride, most});
  return out;
}

/// Where column c is: the pair, and its half.
float value_of(const Written& from, int term, int pair, int half) {
  const auto dword = static_cast<std::uint32_t>(from.pairs[static_cast<std::size_t>(term * kStride + pair)]);
  return bits_as<float>(half == 0 ? dword << 16 : dword & 0xFFFF0000u);
}

float sum_at(const Written& from, int column, cpu::PairOrder order) {
  const int pair = order == cpu::PairOrder::neighbours ? column / 2 : column / 8 * 4 + column % 4;
  const int half = order == cpu::PairOrder::neighbours ? column % 2 : column % 8 / 4;
  float sum = 0;
  for (int term = from.terms; term-- > 0;) sum += value_of(from, term, pair, half);
  return sum;
}

std::vector<float> drawn(std::uint64_t seed) {
  Draw draw(seed);
  std::vector<float> row(kColumns);
  for (float& value : row) value = static_cast<float>(draw.normal());
  row[5] = 0;
  return row;
}

TEST(Bf16Terms, SumToTheRow) {
  for (const cpu::PairOrder order : {cpu::PairOrder::neighbours, cpu::PairOrder::halves}) {
    std::vector<float> row = drawn(1);
    row[7] = std::numeric_limits<float>::max();
    row[8] = std::ldexp(-1.2345678f, -69);
    const Written written = write(row, 3, order);
    EXPECT_EQ(written.terms, 3);
    for (int c = 0; c < kColumns; ++c)
      EXPECT_EQ(sum_at(written, c, order), row[static_cast<std::size_t>(c)]) << c;
    for (int term = 0; term < 3; ++term)
      for (int pair = kColumns / 2; pair < kStride; ++pair)
        EXPECT_EQ(written.pairs[static_cast<std::size_t>(term * kStride + pair)], 0) << "after the row";
  }
}

TEST(Bf16Terms, AreAsManyAsTheRowNeeds) {
  std::vector<float> row = drawn(2);
  EXPECT_EQ(write(row, 1).terms, 0);
  for (float& value : row) value = format::f16_to_float(format::float_to_f16(value));
  EXPECT_EQ(write(row, 3).terms, 2);
  for (float& value : row) value = bits_as<float>(bits_as<std::uint32_t>(value) & 0xFFFF0000u);
  EXPECT_EQ(write(row, 3).terms, 1);
  EXPECT_EQ(write(row, 1).terms, 1);
}

TEST(Bf16Terms, RefuseWhatTheyWouldLose) {
  const std::vector<float> row = drawn(3);
  const auto terms = [](std::vector<float> values, float value) {
    values[11] = value;
    return write(values, 3).terms;
  };
  EXPECT_EQ(terms(row, std::ldexp(1.0f, -69)), 3);
  EXPECT_EQ(terms(row, std::ldexp(1.9f, -70)), 0);
  EXPECT_EQ(terms(row, std::ldexp(-1.9f, -70)), 0);
  EXPECT_EQ(terms(row, std::numeric_limits<float>::infinity()), 0);
  EXPECT_EQ(terms(row, std::numeric_limits<float>::quiet_NaN()), 0);
  const std::vector<float> ones(kColumns, 1.0f);
  EXPECT_EQ(terms(ones, std::ldexp(1.0f, -85)), 1);
  EXPECT_EQ(terms(ones, std::ldexp(1.0f, -86)), 0);
  EXPECT_EQ(terms(ones, -std::numeric_limits<float>::infinity()), 1) << "one term holds it";
}

}  // namespace
}  // namespace sluice::testing
