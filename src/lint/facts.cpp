// SPDX-License-Identifier: Apache-2.0
#include "lint/facts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/scales.h"
#include "lint/bytes.h"

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

format::ScaleShape scales_of(const WeightMatrix& matrix) {
  return format::scale_shape(geometry(matrix), matrix.rows, matrix.cols);
}

Runs scale_runs(const WeightMatrix& matrix) {
  const auto shape = scales_of(matrix);
  const ScalesView& scales = matrix.scales;
  return runs_of(scales.data,
                 {shape.rows, shape.cols, scales.row_stride, scales.col_stride, bits(scales.dtype) / 8});
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

/// log2 of a magnitude, straight between powers of two: at most 0.09 off, and one subtraction.
double log2_of(float magnitude) {
  return static_cast<double>(bits_as<std::uint32_t>(magnitude)) / (1 << 23) - 127;
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

// ---- integers

/// Counts the codes of lines, several at a time: `together` neighbours make up to 12 bits, and those are
/// counted as one number.
class CodeCounts {
 public:
  CodeCounts(const WeightMatrix& matrix, std::int64_t codes_of_line)
      : matrix_(matrix),
        bits_(format::integer_bits(matrix)),
        together_(12 / bits_),
        codes_(codes_of_line),
        sums_(std::size_t{1} << (together_ * bits_)) {}

  void add_line(std::int64_t line) {
    const PackedGrid& grid = matrix_.integers.codes;
    const std::byte* word = matrix_.codes + line * grid.line_stride;
    const bool dense = grid.packing == Packing::dense;
    const int digit = together_ * bits_;
    std::uint64_t held = 0;
    int have = 0;
    for (std::int64_t left = codes_; left > 0; word += grid.word_stride) {
      const std::uint64_t next = load<std::uint32_t>(word);
      // Padded words start afresh; the order of AWQ's nibbles makes no difference to counts of whole words.
      held = dense ? held | next << have : next;
      have = dense ? have + 32 : 32 / bits_ * bits_;
      for (; have >= digit && left >= together_; have -= digit, left -= together_, held >>= digit)
        ++sums_[held & (sums_.size() - 1)];
      if (dense && left >= together_) continue;
      for (; have >= bits_ && left > 0; have -= bits_, --left, held >>= bits_) ++single_[held & mask()];
    }
  }

  void into(std::array<std::int64_t, 256>& codes) const {
    for (std::size_t code = 0; code <= mask(); ++code) codes[code] += single_[code];
    for (std::size_t digit = 0; digit < sums_.size(); ++digit)
      for (int i = 0; i < together_; ++i) codes[digit >> (i * bits_) & mask()] += sums_[digit];
  }

 private:
  std::size_t mask() const { return (std::size_t{1} << bits_) - 1; }

  const WeightMatrix& matrix_;
  int bits_, together_;
  std::int64_t codes_;
  std::vector<std::int64_t> sums_;
  std::array<std::int64_t, 256> single_ = {};
};

void look_at_integers(const WeightMatrix& matrix, const Runs& runs, Hash& hash, Facts& facts) {
  const PackedGrid& grid = matrix.integers.codes;
  const int bits = format::integer_bits(matrix);
  const bool by_row = grid.along == PackedGrid::Along::row;
  const std::int64_t lines = by_row ? matrix.rows : matrix.cols, codes = by_row ? matrix.cols : matrix.rows;
  const bool whole_bytes = 8 % bits == 0 && codes * bits % 32 == 0;
  ByteCounts counts;
  runs.each([&](const std::byte* data, std::int64_t bytes) {
    hash.add(data, bytes);
    if (whole_bytes) counts.add(data, bytes);
  });
  if (whole_bytes) {
    const auto sums = counts.sums();
    const unsigned mask = (1u << bits) - 1;
    for (unsigned byte = 0; byte < 256; ++byte)
      for (int shift = 0; shift < 8; shift += bits) facts.codes[byte >> shift & mask] += sums[byte];
  } else {
    CodeCounts slow(matrix, codes);
    for (std::int64_t line = 0; line < lines; ++line) slow.add_line(line);
    slow.into(facts.codes);
  }
  const unsigned middle = 1u << (bits - 1);
  for (unsigned code = 0; code < 2 * middle; ++code)
    weigh(facts, code, static_cast<float>(code) - static_cast<float>(middle), static_cast<float>(middle));
  facts.top += facts.codes[2 * middle - 1];  // the largest positive one stands beside -middle
}

void look_at_zero_points(const WeightMatrix& matrix, Facts& facts) {
  if (matrix.integers.zeros == nullptr) return;
  const std::int64_t groups = format::groups_of_row(matrix);
  std::vector<std::uint8_t> zeros(static_cast<std::size_t>(groups));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    format::zeros_of_row(matrix, row, zeros.data());
    for (const unsigned zero : zeros) {
      facts.smallest_zero_point = std::min(facts.smallest_zero_point, zero);
      facts.largest_zero_point = std::max(facts.largest_zero_point, zero);
      facts.wrapped_zero_points += zero < static_cast<unsigned>(matrix.integers.zero_offset);
    }
  }
  facts.zero_points = matrix.rows * groups;
}

void look_at_groups(const WeightMatrix& matrix, Facts& facts) {
  const std::byte* const listed = matrix.integers.column_groups;
  if (listed == nullptr) return;
  std::vector<std::int64_t> columns(static_cast<std::size_t>(format::groups_of_row(matrix)));
  for (std::int64_t c = 0; c < matrix.cols; ++c) {
    const std::int64_t group = load<std::int32_t>(listed + 4 * c);
    if (group < 0 || group >= static_cast<std::int64_t>(columns.size()))
      facts.bad_groups = true;
    else
      ++columns[static_cast<std::size_t>(group)];
  }
  const auto [smallest, largest] = std::minmax_element(columns.begin(), columns.end());
  facts.smallest_group = *smallest;
  facts.largest_group = *largest;
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

// ---- scales

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

template <class Bits, class Number>
void add_wide_scales(const Runs& runs, format::Signs signs, Number number, ScaleFacts& facts) {
  runs.each([&](const std::byte* data, std::int64_t bytes) {
    for (std::int64_t at = 0; at < bytes; at += sizeof(Bits))
      add_scale(facts, signs, {number(load<Bits>(data + at))});
  });
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

void look_at_scales(const WeightMatrix& matrix, Hash& hash, ScaleFacts& facts) {
  const auto shape = scales_of(matrix);
  if (matrix.scales.data == nullptr || shape.rows * shape.cols == 0) return;
  const format::Signs signs = format::signs_of(matrix.format);
  const Runs runs = scale_runs(matrix);
  facts.count = shape.rows * shape.cols;
  runs.each([&](const std::byte* data, std::int64_t bytes) { hash.add(data, bytes); });
  switch (matrix.scales.dtype) {
    case DType::f32:
      add_wide_scales<float>(
          runs, signs, [](float value) { return value; }, facts);
      break;
    case DType::bf16:
      add_wide_scales<std::uint16_t>(runs, signs, format::bf16_to_float, facts);
      break;
    case DType::f16:
      add_wide_scales<std::uint16_t>(runs, signs, format::f16_to_float, facts);
      break;
    default:
      add_byte_scales(runs, matrix.scales.dtype == DType::u8 ? DType::f8_e8m0 : matrix.scales.dtype, signs,
                      facts);
  }
  if (facts.good() != facts.count) find_faults(matrix, signs, facts);
}

}  // namespace

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
