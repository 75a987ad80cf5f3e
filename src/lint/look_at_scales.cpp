// SPDX-License-Identifier: Apache-2.0
// Scales: their range, and those that are none.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/scales.h"
#include "lint/look.h"

namespace sluice::linting {
namespace {

format::ScaleShape scales_of(const WeightMatrix& matrix) {
  return format::scale_shape(geometry(matrix), matrix.rows, matrix.cols);
}

/// log2 of a magnitude, straight between powers of two: at most 0.09 off, and one subtraction.
double log2_of(float magnitude) {
  return static_cast<double>(bits_as<std::uint32_t>(magnitude)) / (1 << 23) - 127;
}

struct ScaleValue {
  float value = 0;
  std::int64_t times = 1;
};

void add_scale(ScaleFacts& facts, format::Signs signs, const ScaleValue& scale) {
  if (const auto fault = format::scale_fault(scale.value, signs)) {
    facts.faults[static_cast<std::size_t>(*fault)] += scale.times;
    return;
  }
  const float magnitude = std::abs(scale.value);
  facts.smallest = std::min(facts.smallest, magnitude);
  facts.largest = std::max(facts.largest, magnitude);
  facts.log2_sum += log2_of(magnitude) * static_cast<double>(scale.times);
}

/// Scales of a byte: what each byte means is worked out once.
void add_byte_scales(const Runs& runs, DType dtype, format::Signs signs, ScaleFacts& facts) {
  ByteCounts counts;
  runs.each([&](const std::byte* data, std::int64_t bytes) { counts.add(data, bytes); });
  const auto sums = counts.sums();
  for (std::size_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::byte>(code);
    if (sums[code] != 0) add_scale(facts, signs, {format::read_number(dtype, &byte), sums[code]});
  }
  const bool e8m0 = dtype == DType::f8_e8m0;
  facts.at_bottom = sums[e8m0 ? 0 : 1];
  facts.at_top = sums[e8m0 ? 254 : 126];
}

/// Scales whose numbers are `Number`'s of `Bits` with so many bits of mantissa. Of good normal ones the
/// magnitudes are in the order of their bits, which also are their logarithms (log2_of): blocks of those are
/// counted without looking at each, in loops that become vector code. Others are added one by one.
template <class Bits, int kMantissa, class Number>
struct WideScales {
  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  static constexpr Bits kMagnitude = static_cast<Bits>(kSign - 1);
  static constexpr Bits kNormal = Bits{1} << kMantissa;
  static constexpr Bits kInfinity = static_cast<Bits>(kMagnitude >> kMantissa << kMantissa);
  static constexpr std::int64_t kBlock = 256;

  format::Signs signs;
  Number number;
  ScaleFacts& facts;

  void add(const std::byte* data, std::int64_t bytes) {
    constexpr auto kWidth = static_cast<std::int64_t>(sizeof(Bits));
    const std::int64_t count = bytes / kWidth;
    std::int64_t at = 0;
    for (; at + kBlock <= count; at += kBlock)
      if (!block(data + at * kWidth)) each(data + at * kWidth, kBlock);
    each(data + at * kWidth, count - at);
  }

 private:
  void each(const std::byte* data, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      add_scale(facts, signs, {number(load<Bits>(data + i * static_cast<std::int64_t>(sizeof(Bits))))});
  }

  /// False, and nothing is added, where one of them is no good normal number.
  bool block(const std::byte* data) {
    Bits smallest = kMagnitude, largest = 0, sign = 0;
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      const auto stored = load<Bits>(data + i * static_cast<std::int64_t>(sizeof(Bits)));
      const auto magnitude = static_cast<Bits>(stored & kMagnitude);
      smallest = std::min(smallest, magnitude);
      largest = std::max(largest, magnitude);
      sign = static_cast<Bits>(sign | stored);
      sum += magnitude;
    }
    if (smallest < kNormal || largest >= kInfinity) return false;
    if (signs == format::Signs::positive && (sign & kSign) != 0) return false;
    facts.smallest = std::min(facts.smallest, number(smallest));
    facts.largest = std::max(facts.largest, number(largest));
    constexpr double kBias = sizeof(Bits) == 2 && kMantissa == 10 ? 15 : 127;
    facts.log2_sum += static_cast<double>(sum) / static_cast<double>(kNormal) - kBias * kBlock;
    return true;
  }
};

template <class Bits, int kMantissa, class Number>
void add_wide_scales(const Runs& runs, format::Signs signs, Number number, ScaleFacts& facts) {
  WideScales<Bits, kMantissa, Number> wide{signs, number, facts};
  runs.each([&](const std::byte* data, std::int64_t bytes) { wide.add(data, bytes); });
}

/// Where the first of each fault is. Slow, and only for matrices that have one.
void find_faults(const WeightMatrix& matrix, format::Signs signs, ScaleFacts& facts) {
  const auto shape = scales_of(matrix);
  std::array<bool, format::kScaleFaults> seen = {};
  for (std::int64_t i = 0; i < shape.rows; ++i)
    for (std::int64_t j = 0; j < shape.cols; ++j) {
      const auto fault = format::scale_fault(format::scale_at(matrix.scales, i, j), signs);
      if (!fault || seen[static_cast<std::size_t>(*fault)]) continue;
      const auto at = static_cast<std::size_t>(*fault);
      seen[at] = true;
      facts.first_row[at] = i;
      facts.first_col[at] = j;
    }
}

}  // namespace

Runs scale_runs(const WeightMatrix& matrix) {
  const auto shape = scales_of(matrix);
  const ScalesView& scales = matrix.scales;
  return runs_of(scales.data,
                 {shape.rows, shape.cols, scales.row_stride, scales.col_stride, bits(scales.dtype) / 8});
}

void look_at_scales(const WeightMatrix& matrix, Hash& hash, ScaleFacts& facts) {
  const auto shape = scales_of(matrix);
  if (matrix.scales.data == nullptr || shape.rows * shape.cols == 0) return;
  const format::Signs signs = format::signs_of(matrix.format);
  const Runs runs = scale_runs(matrix);
  facts.count = shape.rows * shape.cols;
  runs.each([&](const std::byte* data, std::int64_t bytes) { hash.add(data, bytes); });
  switch (matrix.scales.dtype) {
    case DType::f32:
      add_wide_scales<std::uint32_t, 23>(
          runs, signs, [](std::uint32_t value) { return bits_as<float>(value); }, facts);
      break;
    case DType::bf16:
      add_wide_scales<std::uint16_t, 7>(runs, signs, format::bf16_to_float, facts);
      break;
    case DType::f16:
      add_wide_scales<std::uint16_t, 10>(runs, signs, format::f16_to_float, facts);
      break;
    default:
      add_byte_scales(runs, matrix.scales.dtype == DType::u8 ? DType::f8_e8m0 : matrix.scales.dtype, signs,
                      facts);
  }
  if (facts.good() != facts.count) find_faults(matrix, signs, facts);
}

}  // namespace sluice::linting
