// SPDX-License-Identifier: Apache-2.0
// Integers of 2 to 8 bits: how often each code occurs, without widening one of them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/bits.h"
#include "format/integers.h"
#include "lint/look.h"

namespace sluice::linting {
namespace {

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

/// The same for codes of 3, 5, 6 or 7 bits that fill their words: 32 of them are as many words as they have
/// bits, and such periods may follow each other in any order.
template <int kBits>
class PeriodCounts {
 public:
  static constexpr std::int64_t kPeriod = 4 * kBits;  // bytes

  /// Whole periods.
  void add(const std::byte* data, std::int64_t bytes) {
    std::int64_t at = 0;
    for (; at + 8 <= bytes; at += kStep) {
      const auto held = load<std::uint64_t>(data + at);
      for (int i = 0; i < kDigits; ++i)
        ++tables_[static_cast<std::size_t>(i % 2)][held >> (i * kDigit) & kMask];
    }
    std::uint64_t held = 0;  // the last bytes, a code at a time
    for (int have = 0; at < bytes || have >= kBits;) {
      for (; have < kBits && at < bytes; have += 8) held |= static_cast<std::uint64_t>(data[at++]) << have;
      ++single_[held & (kCodes - 1)];
      held >>= kBits;
      have -= kBits;
    }
  }

  void into(std::array<std::int64_t, 256>& codes) const {
    for (std::size_t code = 0; code < kCodes; ++code) codes[code] += single_[code];
    for (const auto& table : tables_)
      for (std::size_t digit = 0; digit < table.size(); ++digit)
        for (int i = 0; i < kTogether; ++i) codes[digit >> (i * kBits) & (kCodes - 1)] += table[digit];
  }

 private:
  static constexpr int kTogether = 12 / kBits, kDigit = kTogether * kBits;  // of up to 12 bits
  static constexpr int kDigits = kDigit % 2 == 0 ? 4 : 8;                   // that are whole bytes, below 8
  static constexpr std::int64_t kStep = kDigit * kDigits / 8;
  static constexpr std::size_t kCodes = std::size_t{1} << kBits, kMask = (std::size_t{1} << kDigit) - 1;

  // Two tables, so that a digit that repeats does not wait for its own count.
  std::array<std::array<std::int64_t, kMask + 1>, 2> tables_ = {};
  std::array<std::int64_t, kCodes> single_ = {};
};

/// Words of a line that lie apart, as GPTQ stores them: the periods of neighbouring lines, put together.
template <int kBits>
void add_strided(const WeightMatrix& matrix, std::int64_t lines, std::int64_t periods,
                 PeriodCounts<kBits>& counts) {
  constexpr std::int64_t kLines = 512;
  const PackedGrid& grid = matrix.integers.codes;
  std::array<std::uint32_t, kLines * kBits> together;
  for (std::int64_t period = 0; period < periods; ++period)
    for (std::int64_t first = 0; first < lines; first += kLines) {
      const std::int64_t some = std::min(kLines, lines - first);
      for (int word = 0; word < kBits; ++word) {
        const std::byte* const from =
            matrix.codes + (period * kBits + word) * grid.word_stride + first * grid.line_stride;
        for (std::int64_t line = 0; line < some; ++line)
          together[static_cast<std::size_t>(line * kBits + word)] =
              load<std::uint32_t>(from + line * grid.line_stride);
      }
      counts.add(reinterpret_cast<const std::byte*>(together.data()), some * counts.kPeriod);
    }
}

template <int kBits>
void look_at_periods(const WeightMatrix& matrix, const Runs& runs, Hash& hash, Facts& facts) {
  const PackedGrid& grid = matrix.integers.codes;
  const bool by_row = grid.along == PackedGrid::Along::row;
  const std::int64_t lines = by_row ? matrix.rows : matrix.cols, codes = by_row ? matrix.cols : matrix.rows;
  PeriodCounts<kBits> counts;
  const bool apart = grid.word_stride != 4;
  runs.each(
      [&](const std::byte* data, std::int64_t bytes) {
        hash.add(data, bytes);
        if (!apart) counts.add(data, bytes);
      },
      counts.kPeriod);
  if (apart) add_strided(matrix, lines, codes / 32, counts);
  counts.into(facts.codes);
}

/// False where the codes are packed otherwise.
bool looked_at_periods(const WeightMatrix& matrix, const Runs& runs, Hash& hash, Facts& facts) {
  const PackedGrid& grid = matrix.integers.codes;
  const std::int64_t codes = grid.along == PackedGrid::Along::row ? matrix.cols : matrix.rows;
  if (grid.packing != Packing::dense || codes % 32 != 0) return false;
  switch (format::integer_bits(matrix)) {
    case 3:
      look_at_periods<3>(matrix, runs, hash, facts);
      return true;
    case 5:
      look_at_periods<5>(matrix, runs, hash, facts);
      return true;
    case 6:
      look_at_periods<6>(matrix, runs, hash, facts);
      return true;
    case 7:
      look_at_periods<7>(matrix, runs, hash, facts);
      return true;
    default:
      return false;
  }
}

/// Codes of which a byte, or a line, holds whole ones, or that are packed in no regular way.
void look_at_other_packings(const WeightMatrix& matrix, const Runs& runs, Hash& hash, Facts& facts) {
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
}

}  // namespace

void look_at_integers(const WeightMatrix& matrix, const Runs& runs, Hash& hash, Facts& facts) {
  if (!looked_at_periods(matrix, runs, hash, facts)) look_at_other_packings(matrix, runs, hash, facts);
  const unsigned middle = 1u << (format::integer_bits(matrix) - 1);
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

}  // namespace sluice::linting
