// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/to_digits.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sluice::cpu {
namespace {

constexpr std::int32_t kInfinityBits = 0x7F800000;
/// Steps stay normal numbers: below 2^-103 the values of a step lose bits, at 2^-126 the last one.
constexpr int kLeastExponent = -103;
/// With a fraction from here on, a number scaled to below 2^23 would round to more than kMostFixed.
constexpr std::int32_t kFractionBits = 0x7FFFFF;
constexpr std::int32_t kMostFraction = 2 * kMostFixed + 1 - (1 << 23);

int units(int columns) { return (columns + kDigitColumns - 1) / kDigitColumns; }

/// Two to the `exponent`, -126 to 127.
float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// What a row loses may be this much of what float32 sums lose of its smaller values: the root of the sum of
/// squares of its rounding errors against 2^-24 of the sum of all but each step's largest value. Weights that
/// are zero where a step's largest value is see only the others, and the gate of testing/closeness.h is 4.
constexpr double kMostLost = 0.75;

struct Fixed {
  float step;
  std::int32_t value[kDigitColumns];
};

/// The errors of a row so far, and the values that they are measured against.
struct Loss {
  double squares = 0, values = 0;

  /// One step's: everything in steps, so that nothing over- or underflows.
  void add(const float (&scaled)[kDigitColumns], const std::int32_t (&value)[kDigitColumns], float step) {
    constexpr int kLanes = 8;  // sums side by side, which the compiler makes vectors of
    float squares_of[kLanes] = {}, values_of[kLanes] = {}, largest[kLanes] = {};
    for (int i = 0; i < kDigitColumns; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) {
        const float error = scaled[i + lane] - static_cast<float>(value[i + lane]);
        const float magnitude =
            std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled[i + lane]) & 0x7FFFFFFFu);
        squares_of[lane] += error * error;
        values_of[lane] += magnitude;
        largest[lane] = std::max(largest[lane], magnitude);
      }
    float all_squares = 0, all_values = 0, most = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      all_squares += squares_of[lane];
      all_values += values_of[lane];
      most = std::max(most, largest[lane]);
    }
    squares += static_cast<double>(all_squares) * step * step;
    values += (static_cast<double>(all_values) - most) * step;
  }

  bool too_much() const {
    const double most = kMostLost * 0x1p-24 * values;
    return squares > most * most;
  }
};

/// False for what has no fixed point: NaN, infinity, and numbers so large that rounding would make them
/// infinite.
bool to_fixed(const float* x, Fixed& out, Loss& loss) {
  // Signed, as SSE2 compares: bits of floats without their sign are in the order of the magnitudes.
  std::int32_t largest = 0;
  for (int i = 0; i < kDigitColumns; ++i)
    largest = std::max(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF);
  if (largest >= kInfinityBits) return false;
  // The least exponent with |x| * 2^(kFixedBits - exponent) <= kMostFixed.
  const int more = (largest & kFractionBits) >= kMostFraction;
  const int exponent = std::max((largest >> 23) - 126 + more, kLeastExponent);
  if (exponent > 128) return false;
  out.step = power_of_two(exponent - kFixedBits);
  const float up = power_of_two(kFixedBits - exponent);
  float scaled[kDigitColumns];
  for (int i = 0; i < kDigitColumns; ++i) {
    scaled[i] = x[i] * up;
    // 2^23 with the sign of x: adding it leaves no room for a fraction, which is rounded to nearest even.
    const float shift =
        std::bit_cast<float>((std::bit_cast<std::uint32_t>(scaled[i]) & 0x80000000u) | 0x4B000000u);
    out.value[i] = static_cast<std::int32_t>((scaled[i] + shift) - shift);
  }
  loss.add(scaled, out.value, out.step);
  return true;
}

/// At most 32 times 2^23: no integer overflow, one rounding.
float sum_of(const Fixed& fixed) {
  std::int32_t sum = 0;
  for (const std::int32_t value : fixed.value) sum += value;
  return static_cast<float>(sum) * fixed.step;
}

/// Takes the lowest digit off every value.
template <int kBits>
void split(std::int32_t (&value)[kDigitColumns], std::int32_t (&digit)[kDigitColumns]) {
  constexpr std::int32_t kHalf = 1 << (kBits - 1), kMask = (1 << kBits) - 1;
  for (int i = 0; i < kDigitColumns; ++i) {
    digit[i] = ((value[i] + kHalf) & kMask) - kHalf;
    value[i] = (value[i] - digit[i]) >> kBits;
  }
}

/// Makes the third digit zero where nothing is lost by it, and says how many digits are left.
int drop_lowest(Fixed& fixed) {
  constexpr std::int32_t kLowest = (1 << ByteDigits::kBits) - 1;
  std::int32_t any = 0;
  for (const std::int32_t value : fixed.value) any |= value;
  if ((any & kLowest) != 0) return ByteDigits::kDigits;
  for (std::int32_t& value : fixed.value) value >>= ByteDigits::kBits;
  fixed.step *= 1 << ByteDigits::kBits;
  return ByteDigits::kDigits - 1;
}
void shorten(Fixed& fixed, ByteDigits& out) { out.used = drop_lowest(fixed); }
void shorten(Fixed&, WordDigits&) {}

/// Digits of columns c (low word) and c + 4 (high word) of a line, c = 0 to 3, each masked.
struct ColumnPairs {
  ColumnPairs(const std::int32_t* line, std::uint32_t mask) {
    for (int c = 0; c < 4; ++c)
      pair[c] = (static_cast<std::uint32_t>(line[c]) & mask) |
                (static_cast<std::uint32_t>(line[c + 4]) & mask) << 16;
  }
  std::uint32_t pair[4];
};

void put(const std::int32_t (&digit)[kDigitColumns], int d, ByteDigits& out) {
  for (int line = 0; line < kDigitColumns / 8; ++line) {
    const ColumnPairs columns(digit + 8 * line, 0xFF);
    for (int nibble = 0; nibble < 2; ++nibble)
      out.digits[2 * line + nibble][d] =
          static_cast<std::int32_t>(columns.pair[nibble] | columns.pair[nibble + 2] << 8);
  }
}

void put(const std::int32_t (&digit)[kDigitColumns], int d, WordDigits& out) {
  for (int line = 0; line < kDigitColumns / 8; ++line) {
    const ColumnPairs columns(digit + 8 * line, 0xFFFF);
    for (int part = 0; part < 4; ++part)
      out.digits[4 * line + part][d] = static_cast<std::int32_t>(columns.pair[part / 2 + part % 2 * 2]);
  }
}

/// What products begin with.
void put_sums(const std::int32_t (&digit)[kDigitColumns], int d, ByteDigits& out) {
  std::int32_t half[2] = {};
  for (int i = 0; i < kDigitColumns / 2; ++i) {
    half[0] += digit[i];
    half[1] += digit[i + kDigitColumns / 2];
  }
  const std::int32_t of[kDigitStarts] = {half[0], half[1], half[0] + half[1]};
  for (int start = 0; start < kDigitStarts; ++start) {
    std::int32_t* to = out.start[start];
    const std::int32_t sum = -kE2m1Zero * of[start];
    if (d == 0) to[0] = sum;
    if (d == 1) to[0] += sum * (1 << ByteDigits::kBits);
    if (d == 2) to[1] = sum;
  }
  out.sums[d] = static_cast<std::int32_t>((static_cast<std::uint32_t>(half[0]) & 0xFFFFu) |
                                          static_cast<std::uint32_t>(half[1]) << 16);
}
void put_sums(const std::int32_t (&)[kDigitColumns], int, WordDigits&) {}

template <class Digits>
bool convert(const float* row, int columns, Digits* out) {
  Fixed fixed;
  Loss loss;
  std::int32_t digit[kDigitColumns];
  for (int u = 0; u < units(columns); ++u, row += kDigitColumns, ++out) {
    if (!to_fixed(row, fixed, loss)) return false;
    out->sum = sum_of(fixed);
    shorten(fixed, *out);
    out->step = fixed.step;
    for (int d = 0; d < Digits::kDigits; ++d) {
      split<Digits::kBits>(fixed.value, digit);
      put(digit, d, *out);
      put_sums(digit, d, *out);
    }
  }
  return !loss.too_much();
}

}  // namespace

std::size_t digit_bytes(int columns) {
  return units(columns) * std::max(sizeof(ByteDigits), sizeof(WordDigits));
}

bool to_digits(const float* row, int columns, ByteDigits* out) { return convert(row, columns, out); }
bool to_digits(const float* row, int columns, WordDigits* out) { return convert(row, columns, out); }

}  // namespace sluice::cpu
