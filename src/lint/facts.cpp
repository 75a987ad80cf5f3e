// SPDX-License-Identifier: Apache-2.0
#include "lint/facts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/bits.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/formats.h"
#include "lint/bytes.h"
#include "lint/look.h"

namespace sluice::linting {
namespace {

template <class F>
bool is(const WeightMatrix& matrix) {
  return matrix.format == Formats::of<F>();
}

bool is_plain(const WeightMatrix& matrix) {
  return is<format::F32>(matrix) || is<format::F16>(matrix) || is<format::Bf16>(matrix);
}

Runs code_runs(const WeightMatrix& matrix, Kind kind) {
  if (kind == Kind::integers) {
    const PackedGrid& grid = matrix.integers.codes;
    const bool by_row = grid.along == PackedGrid::Along::row;
    const std::int64_t lines = by_row ? matrix.rows : matrix.cols,
                       words = format::words_of_line(grid.packing, format::integer_bits(matrix),
                                                     by_row ? matrix.cols : matrix.rows);
    return runs_of(matrix.codes, {lines, words, grid.line_stride, grid.word_stride, 4});
  }
  if (kind == Kind::e2m1)
    return {
        .data = matrix.codes, .count = matrix.rows, .bytes = matrix.cols / 2, .stride = matrix.row_stride};
  return runs_of(matrix.codes, {matrix.rows, matrix.cols, matrix.row_stride, matrix.col_stride,
                                geometry(matrix.format).code_bits / 8});
}

Runs zero_runs(const WeightMatrix& matrix) {
  const IntegerParts& parts = matrix.integers;
  if (parts.zeros == nullptr) return {};
  const bool by_row = parts.zeros_grid.along == PackedGrid::Along::row;
  const std::int64_t groups = format::groups_of_row(matrix), lines = by_row ? matrix.rows : groups,
                     words = format::words_of_line(parts.zeros_grid.packing, format::integer_bits(matrix),
                                                   by_row ? groups : matrix.rows);
  return runs_of(parts.zeros, {lines, words, parts.zeros_grid.line_stride, parts.zeros_grid.word_stride, 4});
}

Runs column_runs(const WeightMatrix& matrix) {
  if (matrix.integers.column_groups == nullptr) return {};
  return {
      .data = matrix.integers.column_groups, .count = 1, .bytes = 4 * matrix.cols, .stride = 4 * matrix.cols};
}

// ---- plain numbers

/// `Bits` are those of a number with so many bits of mantissa. Inner loops of a fixed length become vector
/// code.
template <class Bits, int kMantissa>
struct PlainCounter {
  static constexpr int kWidth = 8 * sizeof(Bits);
  static constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  static constexpr Bits kInfinity = static_cast<Bits>(kMagnitude >> kMantissa << kMantissa);
  static constexpr Bits kNormal = Bits{1} << kMantissa;

  std::int64_t zeros = 0, not_finite = 0, denormal = 0;
  double sum = 0;

  void add(const std::byte* data, std::int64_t bytes) {
    constexpr std::int64_t kBlock = 256;
    const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(Bits));
    std::int64_t at = 0;
    for (; at + kBlock <= count; at += kBlock) block<kBlock>(data + at * sizeof(Bits));
    for (; at < count; ++at) block<1>(data + at * sizeof(Bits));
  }

  template <std::int64_t kCount>
  void block(const std::byte* data) {
    std::int32_t zero = 0, bad = 0, small = 0;
    std::uint64_t total = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const auto magnitude = static_cast<Bits>(load<Bits>(data + i * sizeof(Bits)) & kMagnitude);
      zero += magnitude == 0;
      bad += magnitude >= kInfinity;
      small += magnitude < kNormal;
      total += magnitude >= kInfinity ? Bits{0} : magnitude;
    }
    zeros += zero;
    not_finite += bad;
    denormal += small - zero;
    sum += static_cast<double>(total);
  }

  void into(Facts& facts) const {
    facts.zeros = zeros;
    facts.not_finite = not_finite;
    facts.denormal = denormal;
    facts.log2_count = facts.weights - zeros - not_finite;
    constexpr double kBias = sizeof(Bits) == 2 && kMantissa == 10 ? 15 : 127;
    facts.log2_sum = sum / static_cast<double>(kNormal) - kBias * static_cast<double>(facts.log2_count);
  }
};

template <class Counter>
void look_at_plain(const Runs& runs, Hash& hash, Facts& facts) {
  Counter counter;
  runs.each([&](const std::byte* data, std::int64_t bytes) {
    hash.add(data, bytes);
    counter.add(data, bytes);
  });
  counter.into(facts);
}

// ---- codes of 4 and 8 bits

void look_at_bytes(const Runs& runs, Hash& hash, Facts& facts) {
  ByteCounts counts;
  runs.each([&](const std::byte* data, std::int64_t bytes) {
    hash.add(data, bytes);
    counts.add(data, bytes);
  });
  const auto bytes = counts.sums();
  if (facts.kind == Kind::e4m3) {
    facts.codes = bytes;
    for (std::size_t code = 0; code < 256; ++code)
      weigh(facts, code, format::e4m3_to_float(static_cast<std::uint8_t>(code)), format::kE4m3Max);
    return;
  }
  for (std::size_t pair = 0; pair < 256; ++pair) {
    facts.codes[pair & 15] += bytes[pair];
    facts.codes[pair >> 4] += bytes[pair];
  }
  for (std::size_t code = 0; code < 16; ++code) weigh(facts, code, format::kE2m1[code], format::kE2m1Max);
}

// ---- everything else

void look_at_decoded(const WeightMatrix& matrix, Hash& hash, Facts& facts) {
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  const auto bytes = static_cast<std::int64_t>(row.size() * sizeof(float));
  PlainCounter<std::uint32_t, 23> counter;
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    decode_row(matrix, r, row.data());
    const auto* const data = reinterpret_cast<const std::byte*>(row.data());
    hash.add(data, bytes);
    counter.add(data, bytes);
  }
  counter.into(facts);
  facts.denormal = 0;  // products, not what is stored
}

}  // namespace

void weigh(Facts& facts, std::size_t code, float value, float largest) {
  const std::int64_t count = facts.codes[code];
  const float magnitude = std::abs(value);
  if (std::isnan(value)) {
    facts.not_finite += count;
  } else if (magnitude == 0) {
    facts.zeros += count;
  } else {
    facts.log2_sum += static_cast<double>(count) * std::log2(static_cast<double>(magnitude));
    facts.log2_count += count;
    if (magnitude == largest) facts.top += count;
  }
}

Kind kind_of(const WeightMatrix& matrix) {
  if (is_plain(matrix)) return Kind::plain;
  if (is_integer(matrix.format)) return Kind::integers;
  if (is<format::Mxfp4>(matrix) || is<format::Nvfp4>(matrix)) {
    // Where rows are no whole number of dense rows apart, scales lie between codes (GGUF).
    const bool dense = matrix.cols >= 2 && matrix.row_stride % (matrix.cols / 2) == 0;
    return dense ? Kind::e2m1 : Kind::decoded;
  }
  const bool fp8 = is<format::Fp8Block128>(matrix) || is<format::Fp8Channel>(matrix) ||
                   is<format::Fp8Tensor>(matrix) || is<format::Mxfp8>(matrix);
  return fp8 ? Kind::e4m3 : Kind::decoded;
}

std::int64_t ScaleFacts::good() const {
  std::int64_t all = count;
  for (const std::int64_t bad : faults) all -= bad;
  return all;
}

bool Facts::one_code() const {
  return weights > 1 && std::find(codes.begin(), codes.end(), weights) != codes.end();
}

double Facts::magnitude(const WeightMatrix& matrix) const {
  if (log2_count == 0 || zero_points > 0) return 0;
  const double scale = scales.good() > 0 ? scales.log2_sum / static_cast<double>(scales.good()) : 0;
  return log2_sum / static_cast<double>(log2_count) + scale +
         std::log2(static_cast<double>(std::abs(matrix.second_scale)));
}

Facts look_at(const WeightMatrix& matrix) {
  Facts facts{.kind = kind_of(matrix), .weights = matrix.rows * matrix.cols};
  Hash hash;
  if (facts.kind == Kind::decoded) {
    look_at_decoded(matrix, hash, facts);
    facts.hash = hash.value();
    return facts;
  }
  const Runs runs = code_runs(matrix, facts.kind);
  will_read(runs);
  if (is<format::F32>(matrix)) look_at_plain<PlainCounter<std::uint32_t, 23>>(runs, hash, facts);
  if (is<format::F16>(matrix)) look_at_plain<PlainCounter<std::uint16_t, 10>>(runs, hash, facts);
  if (is<format::Bf16>(matrix)) look_at_plain<PlainCounter<std::uint16_t, 7>>(runs, hash, facts);
  if (facts.kind == Kind::e2m1 || facts.kind == Kind::e4m3) look_at_bytes(runs, hash, facts);
  if (facts.kind == Kind::integers) {
    look_at_integers(matrix, runs, hash, facts);
    look_at_zero_points(matrix, facts);
    look_at_groups(matrix, facts);
  }
  look_at_scales(matrix, hash, facts.scales);
  facts.hash = hash.value();
  return facts;
}

bool same_matrix(const WeightMatrix& a, const WeightMatrix& b) {
  const Kind kind = kind_of(a);
  if (a.format != b.format || a.rows != b.rows || a.cols != b.cols || a.second_scale != b.second_scale ||
      kind != kind_of(b) || a.integers.grouping != b.integers.grouping)
    return false;
  if (kind == Kind::decoded) {
    std::vector<float> left(static_cast<std::size_t>(a.cols)), right(left);
    for (std::int64_t r = 0; r < a.rows; ++r) {
      decode_row(a, r, left.data());
      decode_row(b, r, right.data());
      if (left != right) return false;
    }
    return true;
  }
  if (!same_bytes(code_runs(a, kind), code_runs(b, kind))) return false;
  if (a.scales.data != nullptr && !same_bytes(scale_runs(a), scale_runs(b))) return false;
  return same_bytes(zero_runs(a), zero_runs(b)) && same_bytes(column_runs(a), column_runs(b));
}

}  // namespace sluice::linting
