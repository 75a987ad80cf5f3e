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
  const T* row(int r) const { return of.data() + r * each; }
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

/// The 32 codes of a step, a byte each: byte j of vector v is the code of column_of(v, j).
struct Vectors {
  std::uint32_t of[8];
};

/// Every second byte of eight, from the first on.
std::uint32_t every_second(std::uint64_t bytes) {
  bytes &= 0x00FF00FF00FF00FFu;
  bytes = (bytes | bytes >> 8) & 0x0000FFFF0000FFFFu;
  return static_cast<std::uint32_t>(bytes | bytes >> 16);
}

Vectors vectors_of(const std::uint8_t* codes) {
  static_assert(column_of(3, 2) == 8 + 1 + 4,
                "vectors 2i and 2i + 1 are the even and the odd of eight columns");
  Vectors vectors{};
  for (int i = 0; i < 4; ++i) {
    const auto eight = load<std::uint64_t>(reinterpret_cast<const std::byte*>(codes + 8 * i));
    vectors.of[2 * i] = every_second(eight);
    vectors.of[2 * i + 1] = every_second(eight >> 8);
  }
  return vectors;
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
    for (int r = 0; r < lanes_; ++r) {
      std::uint8_t gathered[kDigitColumns];
      const Vectors vectors = vectors_of(codes_of(r, step, gathered));
      for (int p = 0; p < planes.count; ++p)
        put_plane(planes.plane[p], vectors, out + 4 * (planes.plane[p].line * lanes_ + r));
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
        minimum_numbers_(lanes, sizes.blocks) {
    const auto& columns = order_.columns;
    for (std::size_t first = 0; first < columns.size(); first += kDigitColumns) {
      bool straight = columns[first] >= 0;
      for (std::size_t i = 1; i < kDigitColumns; ++i)
        straight &= columns[first + i] == columns[first] + std::int32_t(i);
      straight_.push_back(straight);
    }
  }

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

  /// The 32 codes of a step of row r: where they are, or gathered at `room`.
  const std::uint8_t* codes_of(int r, int step, std::uint8_t* room) const {
    const std::int32_t* columns = order_.columns.data() + kDigitColumns * step;
    const bool straight = straight_[static_cast<std::size_t>(step)];
    if (straight && r < rows_) return codes_.row(r) + columns[0];
    for (int i = 0; i < kDigitColumns; ++i)
      room[i] = r < rows_ && columns[i] >= 0 ? codes_.at(r, columns[i]) : std::uint8_t{0};
    return room;
  }

  void put_plane(const Plane& plane, const Vectors& vectors, std::byte* out) const {
    const int count = 8 / plane.bits;  // of a line
    const std::uint32_t mask = 0x01010101u * ((1u << plane.bits) - 1);
    for (int line = 0; line < plane.bits; ++line) {
      std::uint32_t dword = 0;
      for (int v = 0; v < count; ++v)
        dword |= (vectors.of[line * count + v] >> plane.shift & mask) << (plane.bits * v);
      store(out + 4 * line * lanes_, dword);
    }
  }

  const WeightMatrix& matrix_;
  const IntegerLayout& layout_;
  const int lanes_;
  const ColumnOrder order_;
  std::vector<bool> straight_ = {};   // [steps] 32 columns that follow each other
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
