// SPDX-License-Identifier: Apache-2.0
// Integers and GGUF's blocks as the kernels of a card decode them, read back from where they were packed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/bits.h"
#include "experts/cuda/common/unpack.h"
#include "format/ggml_blocks.h"
#include "tests/cuda/repacked.h"

namespace sluice::cuda {

inline double half_of(std::uint32_t pair, int half) {
  return format::bf16_to_float(static_cast<std::uint16_t>(pair >> (16 * half)));
}

/// As fma.rn.bf16x2 of one half: the result, which must be a bf16 as it is.
inline double fused(std::uint32_t value, std::uint32_t multiplier, double addend, int half) {
  const double exact = half_of(value, half) * half_of(multiplier, half) + addend;
  EXPECT_EQ(exact, format::bf16_to_float(format::float_to_bf16(static_cast<float>(exact))))
      << std::hex << value;
  return exact;
}

/// Minus a zero point, as the kernels make it.
inline double minus_zero(std::uint32_t byte, int half) { return fused(byte * kBothHalves, kZeroUp, 0, half); }

template <int kBits>
double value(std::uint32_t word, int index, std::uint32_t zero, int half) {
  return fused(unpack_integers<kBits>(word, index), kIntegerUp, minus_zero(zero, half), half);
}

/// What a row's run of columns has, as load_scales and load_factors of the kernels read it.
struct GroupScale {
  double scale;
  std::uint8_t zero;
  double rest;
};

inline GroupScale scale_of(Storage storage, const std::byte* part, int r, int run, int runs) {
  const int entry = (r % 8 * runs + run) * 2 + r / 8;
  if (!has_factors(storage))
    return {load<float>(part + 4 * entry), load<std::uint8_t>(part + 4 * kStripRows * runs + entry), 0};
  const int numbers = has_minimums(storage) ? 2 : 1;
  const auto number = [&](int i) {
    return format::f16_to_float(load<std::uint16_t>(part + 2 * (r % 8 * 2 * numbers + 2 * i + r / 8)));
  };
  const std::byte* const factors = part + 2 * numbers * kStripRows;
  const auto factor = load<std::uint8_t>(factors + entry);
  if (numbers == 1) return {double{number(0)} * static_cast<std::int8_t>(factor), kQ6KZero, 0};
  const float scale = number(0) * factor;
  const float minimum = number(1) * load<std::uint8_t>(factors + kStripRows * runs + entry);
  const auto zero = load<std::uint8_t>(factors + 2 * kStripRows * runs + entry);
  return {scale, zero, std::fma(static_cast<float>(zero), scale, -minimum)};
}

/// A row of fragments as the sums see it, in packed columns.
inline std::vector<double> read_row(const StripsLayout& layout, const std::byte* expert, int strip, int r) {
  const Storage storage = layout.storage;
  const int bits = value_bits(storage), each = 16 / bits;  // registers of a word
  const int parts = scale_parts(storage), runs = kBlockColumns / group_columns(storage) / parts;  // of a part
  const double factor = load<float>(expert + layout.factors + 4 * (strip * kStripRows + r));
  std::vector<double> values(static_cast<std::size_t>(layout.columns()));
  const std::byte* block = expert + layout.blocks + strip * layout.strip_bytes();
  for (int k = 0; k < layout.k_blocks; ++k, block += block_bytes(storage))
    for (int step = 0; step < kSteps; ++step)
      for (int t = 0; t < 4; ++t)
        for (int index = r / 8; index < 4; index += 2) {
          const int lane = 4 * (r % 8) + t, pair = step / 2, i = step % 2 * 4 + index;
          const int at = bits == 4 ? pair / 2 * 512 + lane * 16 + pair % 2 * 8 : pair * 512 + lane * 16;
          const auto word = load<std::uint32_t>(block + at + i / each * 4);
          const int part = parts == 1 ? 0 : pair / 2, run = step % (kSteps / parts) * runs / (kSteps / parts);
          const std::byte* scales = block + value_bytes(storage) + part * (scale_bytes(storage) / parts);
          const GroupScale of = scale_of(storage, scales, r, run, runs);
          const Place place_at = place(storage, lane, step, index);
          EXPECT_EQ(place_at.row, r);
          for (int half = 0; half < 2; ++half)
            values[static_cast<std::size_t>(128 * k + place_at.column + half)] =
                (bits == 4 ? value<4>(word, i % each, of.zero, half)
                           : value<8>(word, i % each, of.zero, half)) *
                    of.scale * factor +
                of.rest;
        }
  return values;
}

/// Sums of the packed columns of every column of the matrix.
inline std::vector<double> in_order(const std::vector<double>& packed, const std::vector<std::int32_t>& order,
                                    std::int64_t cols) {
  std::vector<double> values(static_cast<std::size_t>(cols));
  for (std::size_t k = 0; k < packed.size(); ++k) {
    const std::int32_t column = k < order.size() ? order[k] : -1;
    if (column < 0)
      EXPECT_EQ(packed[k], 0) << "packed column " << k << " is padding";
    else
      values[static_cast<std::size_t>(column)] += packed[k];
  }
  return values;
}

/// Exactly, but for what minimums leave beside zero points: that is rounded once, as a value is.
inline void expect_row(const WeightMatrix& matrix, std::int64_t row, const std::vector<double>& got) {
  std::vector<double> want(static_cast<std::size_t>(matrix.cols));
  decode_row(matrix, row, want.data());
  const bool minimums = is_ggml_block(matrix.format) && format::has_minimums(matrix.format);
  for (std::size_t c = 0; c < want.size(); ++c)
    ASSERT_LE(std::abs(got[c] - want[c]), minimums ? 0x1p-24 * std::abs(want[c]) : 0.0)
        << "row " << row << ", column " << c << ": got " << got[c] << ", want " << want[c];
}

/// Repacks and compares every row of the three matrices.
inline void expect_round_trip(const ExpertsSpec& spec, const ExpertWeights& expert) {
  const ExpertLayout layout = expert_layout(spec, packed_columns(spec, {&expert, 1}));
  const std::vector<std::byte> memory = repacked(spec, expert);
  const ExpertOrders orders(spec, expert);
  std::vector<std::int32_t> input(static_cast<std::size_t>(layout.up.columns()));
  std::iota(input.begin(), input.end(), 0);
  std::fill(input.begin() + spec.hidden, input.end(), -1);
  if (layout.gathered != 0) {
    const auto* order = reinterpret_cast<const std::int32_t*>(memory.data() + layout.order);
    input.assign(order, order + layout.gathered);
  }
  for (int k = 0; k < layout.up.rows; ++k) {
    const int row =
        k < std::ssize(orders.down.columns) ? orders.down.columns[static_cast<std::size_t>(k)] : -1;
    const auto check = [&](const WeightMatrix& matrix, int strip, int r) {
      const std::vector<double> got =
          in_order(read_row(layout.up, memory.data(), strip, r), input, spec.hidden);
      if (row >= 0) return expect_row(matrix, row, got);
      EXPECT_TRUE(std::ranges::all_of(got, [](double v) { return v == 0; })) << "padded channel " << k;
    };
    if (!layout.up.paired) check(expert.up, k / 16, k % 16);
    if (layout.up.paired) check(*expert.gate, k / 8, k % 8);
    if (layout.up.paired) check(expert.up, k / 8, 8 + k % 8);
  }
  for (int row = 0; row < spec.hidden; ++row)
    expect_row(expert.down, row,
               in_order(read_row(layout.down, memory.data(), row / 16, row % 16), orders.down.columns,
                        spec.intermediate));
}

}  // namespace sluice::cuda
