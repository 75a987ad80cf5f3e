// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/common/repack_integers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "format/f16.h"
#include "format/formats.h"
#include "format/grouped_row.h"
#include "format/integers.h"
#include "format/scales.h"

namespace sluice::cuda {
namespace {

/// What a group has beside its codes. Of K quants scale and minimum are numbers, of binary16, times factors.
struct GroupOf {
  std::uint8_t zero = 0;
  float scale = 0;
  std::uint16_t number = 0, minimum_number = 0;
  std::uint8_t factor = 0, minimum_factor = 0;
};

/// The zero point that takes most of a minimum, so that what is left is at most half of the scale: then no
/// value is a small difference of large sums, and rounding what is left to float32 is no more than a rounding
/// of the value.
std::uint8_t zero_near(const GroupOf& group) {
  const double scale = double{format::f16_to_float(group.number)} * group.factor;
  const double minimum = double{format::f16_to_float(group.minimum_number)} * group.minimum_factor;
  if (scale == 0) return 0;
  return static_cast<std::uint8_t>(std::clamp(std::nearbyint(minimum / scale), 0.0, 255.0));
}

/// A row's codes, in its columns' own order, and its groups.
struct IntegerRow {
  Row row;
  const ColumnOrder* order = nullptr;
  std::vector<std::uint8_t> codes = {};
  std::vector<GroupOf> groups = {};

  IntegerRow(const Row& its, const ColumnOrder* its_order, Storage storage) : row(its), order(its_order) {
    if (!row) return;
    if (has_factors(storage))
      read_blocks(storage);
    else
      read_scales();
  }
  /// Of the run of columns at `run`; zeros where there are none.
  GroupOf group(std::size_t run) const {
    if (!row || run >= order->groups.size() || order->groups[run] < 0) return {};
    return groups[static_cast<std::size_t>(order->groups[run])];
  }
  /// Of packed column `k`, a zero where there is none.
  std::uint8_t code(std::size_t k, Storage storage) const {
    if (row && k < order->columns.size() && order->columns[k] >= 0)
      return codes[static_cast<std::size_t>(order->columns[k])];
    if (storage == Storage::q6_k) return kQ6KZero;
    return group(k / static_cast<std::size_t>(group_columns(storage))).zero;
  }

 private:
  void read_scales() {
    const WeightMatrix& matrix = *row.matrix;
    const bool blocks = is_ggml_block(matrix.format);
    const auto count = static_cast<std::size_t>(blocks ? format::grouped_shape(matrix).groups
                                                       : format::groups_of_row(matrix));
    codes.resize(static_cast<std::size_t>(matrix.cols));
    std::vector<std::uint8_t> zeros(count);
    std::vector<float> scales(count), minimums(count);
    if (blocks) {
      format::grouped_row(matrix, row.row, {codes.data(), scales.data(), zeros.data(), minimums.data()});
    } else {
      format::codes_of_row(matrix, row.row, codes.data());
      format::zeros_of_row(matrix, row.row, zeros.data());
      for (std::size_t i = 0; i < count; ++i)
        scales[i] = format::scale_at(matrix.scales, row.row, static_cast<std::int64_t>(i));
    }
    groups.resize(count);
    for (std::size_t i = 0; i < count; ++i) groups[i] = {.zero = zeros[i], .scale = scales[i]};
  }

  void read_blocks(Storage storage) {
    const WeightMatrix& matrix = *row.matrix;
    const format::Geometry& g = geometry(matrix.format);
    const auto each = static_cast<std::size_t>(g.block_cols / g.group_cols);
    const auto blocks = static_cast<std::size_t>((matrix.cols + g.block_cols - 1) / g.block_cols);
    codes.resize(blocks * static_cast<std::size_t>(g.block_cols));
    std::vector<std::uint16_t> numbers(blocks), minimum_numbers(blocks);
    std::vector<std::int8_t> factors(blocks * each);
    std::vector<std::uint8_t> minimum_factors(blocks * each);
    format::block_row(
        matrix, row.row,
        {codes.data(), numbers.data(), minimum_numbers.data(), factors.data(), minimum_factors.data()});
    groups.resize(blocks * each);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i] = {.number = numbers[i / each],
                   .minimum_number = minimum_numbers[i / each],
                   .factor = static_cast<std::uint8_t>(factors[i]),
                   .minimum_factor = minimum_factors[i]};
      if (has_minimums(storage)) groups[i].zero = zero_near(groups[i]);
    }
  }
};

using IntegerRows = std::vector<IntegerRow>;  // [kStripRows]

/// Calls visit(r, run, group) for the runs of columns of half a block, or of a block, of every row.
template <class Visit>
void for_groups(const IntegerRows& rows, std::size_t first, int runs, Visit visit) {
  for (int r = 0; r < kStripRows; ++r)
    for (int run = 0; run < runs; ++run)
      visit(r, run, rows[static_cast<std::size_t>(r)].group(first + static_cast<std::size_t>(run)));
}

void write_scales(const IntegerRows& rows, Storage storage, int block, std::byte* out) {
  const int runs = kBlockColumns / group_columns(storage), parts = scale_parts(storage), each = runs / parts;
  for (int part = 0; part < parts; ++part, out += scale_bytes(storage) / parts) {
    const auto first = static_cast<std::size_t>(block * runs + part * each);
    for_groups(rows, first, each, [&](int r, int run, const GroupOf& group) {
      const int at = (r % 8 * each + run) * 2 + r / 8;
      store(out + 4 * at, group.scale);
      store(out + 4 * kStripRows * each + at, group.zero);
    });
  }
}

/// Halves of blocks are within one of GGUF's.
void write_factors(const IntegerRows& rows, Storage storage, int block, std::byte* out) {
  const int runs = kBlockColumns / group_columns(storage), each = runs / 2;
  const int numbers = has_minimums(storage) ? 2 : 1;
  for (int part = 0; part < 2; ++part, out += scale_bytes(storage) / 2) {
    const auto first = static_cast<std::size_t>(block * runs + part * each);
    std::byte* const factors = out + 2 * numbers * kStripRows;
    for_groups(rows, first, each, [&](int r, int run, const GroupOf& group) {
      const int at = (r % 8 * each + run) * 2 + r / 8;
      store(factors + at, group.factor);
      if (has_minimums(storage)) {
        store(factors + kStripRows * each + at, group.minimum_factor);
        store(factors + 2 * kStripRows * each + at, group.zero);
      }
      if (run > 0) return;
      store(out + 2 * (r % 8 * 2 * numbers + r / 8), group.number);
      if (numbers == 2) store(out + 2 * (r % 8 * 2 * numbers + 2 + r / 8), group.minimum_number);
    });
  }
}

/// The codes of two steps of a lane: registers in the order of unpack_integers.
void write_lane(const Codes& codes, Storage storage, int pair, int lane, std::byte* out) {
  const int bits = value_bits(storage), registers = 16 / bits;  // of a word
  std::uint32_t words[4] = {};
  for (int i = 0; i < 8; ++i) {
    const Place at = place(storage, lane, 2 * pair + i / 4, i % 4);
    const auto two = codes[static_cast<std::size_t>(at.row)].begin() + at.column;
    words[i / registers] |= (std::uint32_t{two[0]} | std::uint32_t{two[1]} << 16) << (bits * (i % registers));
  }
  for (int i = 0; i < bits / 2; ++i) store(out + 4 * i, words[i]);
}

void write_values(const Codes& codes, Storage storage, std::byte* out) {
  for (int pair = 0; pair < kSteps / 2; ++pair)
    for (int lane = 0; lane < kLanes; ++lane) {
      const int at =
          value_bits(storage) == 4 ? pair / 2 * 512 + lane * 16 + pair % 2 * 8 : pair * 512 + lane * 16;
      write_lane(codes, storage, pair, lane, out + at);
    }
}

}  // namespace

void write_integer_strip(const StripsLayout& layout, const Strip& strip,
                         const ColumnOrder* const (&orders)[2], std::byte* blocks) {
  const Storage storage = layout.storage;
  IntegerRows rows;
  for (int r = 0; r < kStripRows; ++r)
    rows.emplace_back(strip[static_cast<std::size_t>(r)], orders[r / 8], storage);
  for (int block = 0; block < layout.k_blocks; ++block, blocks += block_bytes(storage)) {
    Codes codes{};
    for (std::size_t r = 0; r < kStripRows; ++r)
      for (std::size_t c = 0; c < kBlockColumns; ++c)
        codes[r][c] = rows[r].code(static_cast<std::size_t>(block) * kBlockColumns + c, storage);
    write_values(codes, storage, blocks);
    (has_factors(storage) ? write_factors : write_scales)(rows, storage, block,
                                                          blocks + value_bytes(storage));
  }
}

}  // namespace sluice::cuda
