// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/common/repack_integers.h"

#include <vector>

#include "format/integers.h"
#include "format/scales.h"

namespace sluice::cuda {
namespace {

/// A row's codes, in its columns' own order, and the zero points of its groups.
struct IntegerRow {
  Row row;
  const ColumnOrder* order = nullptr;
  std::vector<std::uint8_t> codes = {}, zeros = {};

  IntegerRow(const Row& its, const ColumnOrder* its_order) : row(its), order(its_order) {
    if (!row) return;
    codes.resize(static_cast<std::size_t>(row.matrix->cols));
    zeros.resize(static_cast<std::size_t>(format::groups_of_row(*row.matrix)));
    format::codes_of_row(*row.matrix, row.row, codes.data());
    format::zeros_of_row(*row.matrix, row.row, zeros.data());
  }
  /// Of the run of columns at `run`; -1 where there are none.
  std::int32_t group(std::size_t run) const {
    return row && run < order->groups.size() ? order->groups[run] : -1;
  }
  std::uint8_t zero(std::int32_t group) const {
    return group < 0 ? std::uint8_t{0} : zeros[static_cast<std::size_t>(group)];
  }
  float scale(std::int32_t group) const {
    return group < 0 ? 0.0f : format::scale_at(row.matrix->scales, row.row, group);
  }
  /// Of packed column `k`, a zero where there is none.
  std::uint8_t code(std::size_t k, int run_columns) const {
    if (row && k < order->columns.size() && order->columns[k] >= 0)
      return codes[static_cast<std::size_t>(order->columns[k])];
    return zero(group(k / static_cast<std::size_t>(run_columns)));
  }
};

using IntegerRows = std::vector<IntegerRow>;  // [kStripRows]

void write_scales(const IntegerRows& rows, Storage storage, int block, std::byte* out) {
  const int runs = kBlockColumns / group_columns(storage), parts = scale_parts(storage), each = runs / parts;
  for (int part = 0; part < parts; ++part, out += scale_bytes(storage) / parts)
    for (int r = 0; r < kStripRows; ++r)
      for (int run = 0; run < each; ++run) {
        const int at = (r % 8 * each + run) * 2 + r / 8;
        const IntegerRow& row = rows[static_cast<std::size_t>(r)];
        const std::int32_t group = row.group(static_cast<std::size_t>(block * runs + part * each + run));
        store(out + 4 * at, row.scale(group));
        store(out + 4 * kStripRows * each + at, row.zero(group));
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
  IntegerRows rows;
  for (int r = 0; r < kStripRows; ++r) rows.emplace_back(strip[static_cast<std::size_t>(r)], orders[r / 8]);
  const int run_columns = group_columns(layout.storage);
  for (int block = 0; block < layout.k_blocks; ++block, blocks += block_bytes(layout.storage)) {
    Codes codes{};
    for (std::size_t r = 0; r < kStripRows; ++r)
      for (std::size_t c = 0; c < kBlockColumns; ++c)
        codes[r][c] = rows[r].code(static_cast<std::size_t>(block) * kBlockColumns + c, run_columns);
    write_values(codes, layout.storage, blocks);
    write_scales(rows, layout.storage, block, blocks + value_bytes(layout.storage));
  }
}

}  // namespace sluice::cuda
