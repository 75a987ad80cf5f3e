// SPDX-License-Identifier: Apache-2.0
// Writes pairs of integers (layout.h): records of scales, zero points and steps of codes in planes. Reads
// whole rows of a block through format/, which alone knows how files pack them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/bits.h"
#include "experts/cpu/common/integer_columns.h"
#include "experts/cpu/common/pack.h"
#include "format/geometry.h"
#include "format/grouped_row.h"
#include "format/integers.h"
#include "format/scales.h"

namespace sluice::cpu {
namespace {

/// Numbers of rows as an array of rows of arrays.
template <class T>
struct Rows {
  std::vector<T> of;
  std::int64_t each = 0;

  Rows(int rows, std::int64_t its_each) : of(static_cast<std::size_t>(rows * its_each)), each(its_each) {}
  T* row(int r) { return of.data() + r * each; }
  T at(int r, std::int64_t i) const { return of[static_cast<std::size_t>(r * each + i)]; }
};

/// How many there are in a row.
struct RowSizes {
  std::int64_t columns, groups, blocks;
};

RowSizes row_sizes(const WeightMatrix& matrix) {
  if (!is_ggml_block(matrix.format)) return {matrix.cols, format::groups_of_row(matrix), 0};
  const format::Geometry& g = geometry(matrix.format);
  const std::int64_t blocks = (matrix.cols + g.block_cols - 1) / g.block_cols,
                     columns = blocks * g.block_cols;
  return {columns, columns / g.group_cols, blocks};
}

/// `lanes` rows of a matrix; those that it does not have are zeros.
class IntegerBlock {
 public:
  IntegerBlock(const WeightMatrix& matrix, const IntegerLayout& layout, int lanes)
      : IntegerBlock(matrix, layout, lanes, row_sizes(matrix)) {}

  const ColumnOrder& order() const { return order_; }

  /// Reads the rows from `first` on.
  void read(std::int64_t first) {
    first_ = first;
    rows_ = static_cast<int>(std::clamp<std::int64_t>(matrix_.rows - first, 0, lanes_));
    for (int r = 0; r < rows_; ++r) {
      if (numbers_.each != 0) {
        format::block_row(matrix_, first + r,
                          {.codes = codes_.row(r),
                           .numbers = numbers_.row(r),
                           .minimum_numbers = minimum_numbers_.row(r),
                           .factors = factors_.row(r),
                           .minimum_factors = bytes_.row(r)});
        continue;
      }
      format::codes_of_row(matrix_, first + r, codes_.row(r));
      format::zeros_of_row(matrix_, first + r, bytes_.row(r));
    }
  }

  /// `lanes` numbers of the block of columns at a step, and at `minimums` those of the minimums.
  void put_numbers(int step, std::byte* out, std::byte* minimums) const {
    const int block = step / kNumberSteps;
    for (int r = 0; r < lanes_; ++r) {
      store(out + 2 * r, r < rows_ ? numbers_.at(r, block) : std::uint16_t{0});
      if (layout_.minimums)
        store(minimums + 2 * r, r < rows_ ? minimum_numbers_.at(r, block) : std::uint16_t{0});
    }
  }

  /// `lanes` scales of a part.
  void put_scales(int part, std::byte* out) const {
    const std::int32_t group = order_.groups[static_cast<std::size_t>(part)];
    if (numbers_.each != 0) return put_block_scales(group, out);
    const bool wide = layout_.scales == ScaleType::f32;
    for (int r = 0; r < lanes_; ++r) {
      const bool there = r < rows_ && group >= 0;
      const ScalesView& scales = matrix_.scales;
      const std::byte* at = scales.data + (first_ + r) * scales.row_stride + group * scales.col_stride;
      if (wide)
        store(out + 4 * r, there ? format::read_number(scales.dtype, at) : 0.0f);
      else
        store(out + 2 * r, there ? load<std::uint16_t>(at) : std::uint16_t{0});
    }
  }

  /// And zero points or minimums.
  void put_bytes(int part, std::byte* out) const {
    const std::int32_t group = order_.groups[static_cast<std::size_t>(part)];
    for (int r = 0; r < lanes_; ++r)
      store(out + r, r < rows_ && group >= 0 ? bytes_.at(r, group) : std::uint8_t{0});
  }

  /// The codes of a step.
  void put_codes(int step, std::byte* out) const {
    const Planes planes = planes_of(layout_.bits);
    const std::int32_t* columns = order_.columns.data() + 32 * step;
    std::uint8_t codes[32];
    for (int r = 0; r < lanes_; ++r) {
      for (int i = 0; i < 32; ++i)
        codes[i] = r < rows_ && columns[i] >= 0 ? codes_.at(r, columns[i]) : std::uint8_t{0};
      for (int p = 0; p < planes.count; ++p)
        put_plane(planes.plane[p], codes, out + 4 * (planes.plane[p].line * lanes_ + r));
    }
  }

 private:
  IntegerBlock(const WeightMatrix& matrix, const IntegerLayout& layout, int lanes, const RowSizes& sizes)
      : matrix_(matrix),
        layout_(layout),
        lanes_(lanes),
        order_(order_of(matrix, layout)),
        codes_(lanes, sizes.columns),
        bytes_(lanes, sizes.groups),
        factors_(lanes, sizes.blocks != 0 ? sizes.groups : 0),
        numbers_(lanes, sizes.blocks),
        minimum_numbers_(lanes, sizes.blocks) {}

  /// Of blocks: the file's number where a block is a group, else the group's factor.
  void put_block_scales(std::int32_t group, std::byte* out) const {
    for (int r = 0; r < lanes_; ++r) {
      const bool there = r < rows_ && group >= 0;
      if (layout_.scales == ScaleType::product)
        store(out + r, there ? factors_.at(r, group) : std::int8_t{0});
      else
        store(out + 2 * r, there ? numbers_.at(r, group) : std::uint16_t{0});
    }
  }

  void put_plane(const Plane& plane, const std::uint8_t (&codes)[32], std::byte* out) const {
    const int vectors = 8 / plane.bits;  // of a line
    for (int line = 0; line < plane.bits; ++line) {
      std::uint32_t dword = 0;
      for (int v = 0; v < vectors; ++v)
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t value = static_cast<std::uint32_t>(
              codes[column_of(line * vectors + v, j)] >> plane.shift & ((1 << plane.bits) - 1));
          dword |= value << (8 * j + plane.bits * v);
        }
      store(out + 4 * line * lanes_, dword);
    }
  }

  const WeightMatrix& matrix_;
  const IntegerLayout& layout_;
  const int lanes_;
  const ColumnOrder order_;
  Rows<std::uint8_t> codes_, bytes_;  // bytes are zero points, or what minimums are products of
  Rows<std::int8_t> factors_;         // these three of GGUF's blocks only
  Rows<std::uint16_t> numbers_, minimum_numbers_;
  std::int64_t first_ = 0;
  int rows_ = 0;
};

/// Block `b` of a pair.
void put_block(const IntegerLayout& layout, int lanes, const IntegerBlock& block, int b, std::byte* pair) {
  const int scale_bytes = layout.scale_bytes(lanes), parts = layout.parts(), steps = layout.steps();
  for (int first = 0; first < steps; first += layout.group_steps) {
    if (layout.number_bytes(lanes) != 0 && first % kNumberSteps == 0) {
      block.put_numbers(first, pair + 2 * b * lanes, pair + 2 * (2 + b) * lanes);
      pair += layout.number_bytes(lanes);
    }
    for (int p = 0; p < parts; ++p) {
      const int part = first * parts + p;
      block.put_scales(part, pair + (2 * p + b) * (scale_bytes / (2 * parts)));
      if (layout.byte_bytes(lanes) != 0) block.put_bytes(part, pair + scale_bytes + (2 * p + b) * lanes);
    }
    pair += layout.head_bytes(lanes);
    const int last = std::min(first + layout.group_steps, steps);
    for (int step = first; step < last; ++step, pair += layout.step_bytes(lanes))
      block.put_codes(step, pair + b * (layout.step_bytes(lanes) / 2));
  }
}

void put_order(const ColumnOrder& order, const Stream& stream, std::byte* expert) {
  std::copy(order.columns.begin(), order.columns.end(),
            reinterpret_cast<std::int32_t*>(expert + stream.order_offset));
}

}  // namespace

void pack_order(const Stream& stream, const PairSource& source, std::byte* expert) {
  put_order(order_of(*source.block[0], stream.integers), stream, expert);
}

void pack_integers(const Stream& stream, int lanes, const PairSource& source, PairRange range,
                   std::byte* expert) {
  const IntegerLayout& layout = stream.integers;
  const std::size_t used = layout.used_bytes(lanes);
  for (int b = 0; b < 2; ++b) {
    IntegerBlock block(*source.block[b], layout, lanes);
    if (stream.gathers() && range.first == 0 && b == 0) put_order(block.order(), stream, expert);
    for (int p = range.first; p < range.last; ++p) {
      block.read(std::int64_t{stream.pairing == Pairing::gate_with_up ? p : 2 * p + b} * lanes);
      std::byte* const pair = expert + stream.offset + p * stream.pair_bytes;
      if (b == 0) std::memset(pair + used, 0, stream.pair_bytes - used);
      put_block(layout, lanes, block, b, pair);
    }
  }
}

}  // namespace sluice::cpu
