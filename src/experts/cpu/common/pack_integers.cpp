// SPDX-License-Identifier: Apache-2.0
// Writes pairs of integers (layout.h): records of scales, zero points and steps of codes in planes. Reads
// whole rows of a block through format/integers.h, which alone knows how files pack them.
#include <algorithm>
#include <vector>

#include "core/bits.h"
#include "experts/cpu/common/integer_columns.h"
#include "experts/cpu/common/pack.h"
#include "format/integers.h"
#include "format/scales.h"

namespace sluice::cpu {
namespace {

/// `lanes` rows of a matrix; those that it does not have are zeros.
class IntegerBlock {
 public:
  IntegerBlock(const WeightMatrix& matrix, const IntegerLayout& layout, int lanes)
      : matrix_(matrix),
        layout_(layout),
        lanes_(lanes),
        order_(order_of(matrix, layout)),
        codes_(static_cast<std::size_t>(lanes * matrix.cols)),
        zeros_(static_cast<std::size_t>(lanes * format::groups_of_row(matrix))) {}

  const ColumnOrder& order() const { return order_; }

  /// Reads the rows from `first` on.
  void read(std::int64_t first) {
    first_ = first;
    rows_ = static_cast<int>(std::clamp<std::int64_t>(matrix_.rows - first, 0, lanes_));
    for (int r = 0; r < rows_; ++r) {
      format::codes_of_row(matrix_, first + r, codes_.data() + r * matrix_.cols);
      format::zeros_of_row(matrix_, first + r, zeros_.data() + r * groups());
    }
  }

  /// `lanes` scales of a part.
  void put_scales(int part, std::byte* out) const {
    const std::int32_t group = order_.groups[static_cast<std::size_t>(part)];
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

  /// And zero points.
  void put_zeros(int part, std::byte* out) const {
    const std::int32_t group = order_.groups[static_cast<std::size_t>(part)];
    for (int r = 0; r < lanes_; ++r)
      store(out + r, r < rows_ && group >= 0 ? zeros_[static_cast<std::size_t>(r * groups() + group)]
                                             : std::uint8_t{0});
  }

  /// The codes of a step.
  void put_codes(int step, std::byte* out) const {
    const Planes planes = planes_of(layout_.bits);
    const std::int32_t* columns = order_.columns.data() + 32 * step;
    std::uint8_t codes[32];
    for (int r = 0; r < lanes_; ++r) {
      for (int i = 0; i < 32; ++i) codes[i] = r < rows_ && columns[i] >= 0 ? code(r, columns[i]) : 0;
      for (int p = 0; p < planes.count; ++p)
        put_plane(planes.plane[p], codes, out + 4 * (planes.plane[p].line * lanes_ + r));
    }
  }

 private:
  std::int64_t groups() const { return static_cast<std::int64_t>(zeros_.size()) / lanes_; }
  std::uint8_t code(int r, std::int32_t column) const {
    return codes_[static_cast<std::size_t>(r * matrix_.cols + column)];
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
  std::vector<std::uint8_t> codes_, zeros_;
  std::int64_t first_ = 0;
  int rows_ = 0;
};

/// Block `b` of a pair.
void put_block(const IntegerLayout& layout, int lanes, const IntegerBlock& block, int b, std::byte* pair) {
  const int scale_bytes = layout.scale_bytes(lanes), parts = layout.parts(), steps = layout.steps();
  for (int first = 0; first < steps; first += layout.group_steps) {
    for (int p = 0; p < parts; ++p) {
      const int part = first * parts + p;
      block.put_scales(part, pair + (2 * p + b) * (scale_bytes / (2 * parts)));
      if (layout.zeros) block.put_zeros(part, pair + scale_bytes + (2 * p + b) * lanes);
    }
    pair += layout.head_bytes(lanes);
    const int last = std::min(first + layout.group_steps, steps);
    for (int step = first; step < last; ++step, pair += layout.step_bytes(lanes))
      block.put_codes(step, pair + b * (layout.step_bytes(lanes) / 2));
  }
}

}  // namespace

void pack_integers(const Stream& stream, int lanes, const PairSource& source, PairRange range,
                   std::byte* expert) {
  const IntegerLayout& layout = stream.integers;
  for (int b = 0; b < 2; ++b) {
    IntegerBlock block(*source.block[b], layout, lanes);
    if (stream.gathers() && range.first == 0 && b == 0)
      std::copy(block.order().columns.begin(), block.order().columns.end(),
                reinterpret_cast<std::int32_t*>(expert + stream.order_offset));
    for (int p = range.first; p < range.last; ++p) {
      block.read(std::int64_t{stream.pairing == Pairing::gate_with_up ? p : 2 * p + b} * lanes);
      put_block(layout, lanes, block, b, expert + stream.offset + p * stream.pair_bytes);
    }
  }
}

}  // namespace sluice::cpu
