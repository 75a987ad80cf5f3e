// SPDX-License-Identifier: Apache-2.0
// float32 rows as fixed-point digits (digits.h): the digits add up to the value, in the order that the
// kernels read.
#include <cmath>
#include <limits>
#include <vector>

#include "experts/cpu/common/to_digits.h"
#include "gtest/gtest.h"
#include "testing/draw.h"

namespace sluice::testing {
namespace {

using cpu::ByteDigits;
using cpu::WordDigits;

/// The digit d of column c, by the order that digits.h states.
std::int64_t digit(const ByteDigits& from, int column, int d) {
  const int line = column / 8, nibble = column % 2, place = column % 8 / 2;
  return static_cast<std::int8_t>(from.digits[2 * line + nibble][d] >> 8 * place);
}
std::int64_t digit(const WordDigits& from, int column, int d) {
  const int line = column / 8, nibble = column % 2, j = column % 4 / 2, place = column % 8 / 4;
  return static_cast<std::int16_t>(from.digits[4 * line + 2 * nibble + j][d] >> 16 * place);
}

template <class Digits>
std::vector<double> back(const std::vector<Digits>& from, int columns) {
  std::vector<double> row;
  for (int c = 0; c < columns; ++c) {
    const Digits& unit = from[c / cpu::kDigitColumns];
    double fixed = 0;
    for (int d = 0; d < Digits::kDigits; ++d)
      fixed += std::ldexp(static_cast<double>(digit(unit, c % cpu::kDigitColumns, d)), Digits::kBits * d);
    row.push_back(fixed * unit.step);
  }
  return row;
}

template <class Digits>
class CpuDigits : public ::testing::Test {
 protected:
  std::vector<Digits> convert(const std::vector<float>& row) {
    std::vector<Digits> out(row.size() / cpu::kDigitColumns);
    EXPECT_TRUE(cpu::to_digits(row.data(), static_cast<int>(row.size()), out.data()));
    return out;
  }
};

using Forms = ::testing::Types<ByteDigits, WordDigits>;
TYPED_TEST_SUITE(CpuDigits, Forms);

TYPED_TEST(CpuDigits, AddUpToTheValue) {
  Draw draw(1);
  std::vector<float> row(320);
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<float>(std::ldexp(draw.normal(), static_cast<int>(i / 32) * 12 - 60));
  const std::vector<double> got = back(this->convert(row), 320);
  for (int u = 0; u < 10; ++u) {
    double largest = 0;
    for (int i = 32 * u; i < 32 * u + 32; ++i) largest = std::max<double>(largest, std::fabs(row[i]));
    for (int i = 32 * u; i < 32 * u + 32; ++i)
      EXPECT_LE(std::fabs(got[i] - row[i]), 1.01 * largest * 0x1p-23) << i;
  }
}

TYPED_TEST(CpuDigits, HoldSmallIntegersAndLargeNumbersExactly) {
  std::vector<float> row(64);
  for (int i = 0; i < 32; ++i) row[i] = static_cast<float>((i - 16) * 131072 - i);  // up to 2^21
  row[40] = 0x1p127f;
  row[41] = -0x1.8p110f;
  const std::vector<double> got = back(this->convert(row), 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[i], row[i]) << i;
}

TYPED_TEST(CpuDigits, KeepBf16InputsUnlessTheyAre2ToThe14Smaller) {
  std::vector<float> row(32, 1.9921875f);  // 8 bits
  for (int i = 1; i < 15; ++i) row[i] = std::ldexp(-1.9921875f, -i);
  const std::vector<double> got = back(this->convert(row), 32);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(got[i], row[i]) << i;
}

TEST(CpuByteDigits, ComeWithTheirSums) {
  Draw draw(2);
  std::vector<float> row(320);
  for (float& value : row) value = static_cast<float>(draw.normal());
  std::vector<ByteDigits> units(10);
  ASSERT_TRUE(cpu::to_digits(row.data(), 320, units.data()));
  const ByteDigits& unit = units[0];
  std::int64_t half[ByteDigits::kDigits][2] = {};
  for (int d = 0; d < ByteDigits::kDigits; ++d) {
    for (int c = 0; c < 32; ++c) half[d][c / 16] += digit(unit, c, d);
    EXPECT_EQ(static_cast<std::int16_t>(unit.sums[d]), half[d][0]);
    EXPECT_EQ(static_cast<std::int16_t>(unit.sums[d] >> 16), half[d][1]);
  }
  for (int h = 0; h < 2; ++h) {
    EXPECT_EQ(unit.start[h][0], -12 * (half[0][h] + 256 * half[1][h]));
    EXPECT_EQ(unit.start[h][1], -12 * half[2][h]);
  }
  EXPECT_EQ(unit.start[cpu::kWhole][0], unit.start[cpu::kFirstHalf][0] + unit.start[cpu::kSecondHalf][0]);
  EXPECT_EQ(unit.start[cpu::kWhole][1], unit.start[cpu::kFirstHalf][1] + unit.start[cpu::kSecondHalf][1]);
}

/// Of 32 bf16 numbers two digits hold all where each is zero or at least 2^-7 of the largest's power of two;
/// a single bit below takes the third.
TEST(CpuByteDigits, AreTwoWhereThoseHoldEverything) {
  std::vector<float> row(96, 0.0f);
  for (int i = 0; i < 32; ++i) row[i] = std::ldexp(i % 2 == 0 ? 1.4921875f : -1.4921875f, -(i % 8));
  std::copy_n(row.begin(), 32, row.begin() + 32);
  row[32 + 17] = std::ldexp(1.4921875f, -8);
  std::vector<ByteDigits> units(3);
  ASSERT_TRUE(cpu::to_digits(row.data(), 96, units.data()));
  EXPECT_EQ(units[0].used, 2);
  EXPECT_EQ(units[1].used, 3);
  EXPECT_EQ(units[2].used, 2) << "zeros";
  for (int c = 0; c < 32; ++c) EXPECT_EQ(digit(units[0], c, 2), 0);
  const std::vector<double> got = back(units, 96);
  for (int i = 0; i < 96; ++i) EXPECT_EQ(got[i], row[i]) << i;
}

TYPED_TEST(CpuDigits, ComeWithTheSumOfTheInputs) {
  Draw draw(2);
  std::vector<float> row(320);
  for (float& value : row) value = static_cast<float>(draw.normal());
  const auto units = this->convert(row);
  const std::vector<double> exact = back(units, 320);
  for (int u = 0; u < 10; ++u) {
    double sum = 0;
    for (int i = 32 * u; i < 32 * u + 32; ++i) sum += exact[i];
    EXPECT_EQ(units[u].sum, static_cast<float>(sum)) << u;
  }
}

TYPED_TEST(CpuDigits, ZerosAndTheSmallestNumbers) {
  std::vector<float> row(64);
  row[32] = 0x1p-105f;
  row[33] = 0x1p-126f;
  const std::vector<double> got = back(this->convert(row), 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[i], row[i]) << i;
}

/// A row that fixed point would lose more of than float32 sums do goes to the float32 kernel.
TYPED_TEST(CpuDigits, RefuseWhatTheyWouldLose) {
  std::vector<TypeParam> out(10);
  const auto takes = [&](const std::vector<float>& row) {
    return cpu::to_digits(row.data(), static_cast<int>(row.size()), out.data());
  };
  std::vector<float> row(32, 0.05f);
  EXPECT_TRUE(takes(row));
  row[0] = 0x1p20f;  // one of these, and nothing is left of the others
  EXPECT_FALSE(takes(row));
  std::fill(row.begin() + 1, row.end(), 0.0f);
  EXPECT_TRUE(takes(row)) << "nothing is lost of zeros";
  row[1] = 0x1p-130f;
  row[0] = 0x1p-105f;
  EXPECT_FALSE(takes(row)) << "below the smallest step";

  Draw draw(3);
  std::vector<float> wide(320);
  for (float& value : wide) value = static_cast<float>(draw.normal());
  EXPECT_TRUE(takes(wide));
  wide[100] = 30;
  EXPECT_TRUE(takes(wide));
  wide[100] = 10000;
  EXPECT_FALSE(takes(wide));
}

TYPED_TEST(CpuDigits, RefuseWhatIsNotFiniteOrWouldNotStaySo) {
  for (float value : {std::numeric_limits<float>::max(), std::numeric_limits<float>::quiet_NaN(),
                      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> row(64, 1.0f);
    row[63] = value;
    std::vector<TypeParam> out(2);
    EXPECT_FALSE(cpu::to_digits(row.data(), 64, out.data())) << value;
  }
}

}  // namespace
}  // namespace sluice::testing
