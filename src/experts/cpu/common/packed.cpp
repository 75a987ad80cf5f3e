// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/packed.h"

namespace sluice::cpu {
namespace {

constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// A matrix as a spec has it, and what packing sees beyond.
struct Matrix {
  Format format;
  const Grouping& grouping;
  const SeenIntegers& seen;
  int columns;
};

int cover(int size, int unit) { return (size + unit - 1) / unit; }

/// Columns of a part where a scale does not cover whole steps.
constexpr int kHalf = kDigitColumns / 2;

/// Of GGUF's formats, whose groups are their own.
IntegerLayout block_layout(const Matrix& matrix) {
  const format::Geometry& g = geometry(matrix.format);
  const bool two_levels = g.block_cols == kNumberSteps * kDigitColumns;
  return {.bits = g.code_bits,
          .part = g.group_cols,
          .scales = two_levels ? ScaleType::product : ScaleType::f16,
          .minimums = format::has_minimums(matrix.format),
          .columns = matrix.columns};
}

IntegerLayout integer_layout(const Matrix& matrix) {
  const Grouping& grouping = matrix.grouping;
  IntegerLayout layout{.bits = geometry(matrix.format).code_bits,
                       .scales = matrix.seen.scales,
                       .zeros = grouping.zero_points,
                       .columns = matrix.columns};
  const int group = grouping.columns, groups = group == 0 ? 1 : cover(matrix.columns, group);
  if (groups == 1) {  // in which the order of columns makes no difference
    layout.group_steps = layout.steps();
    return layout;
  }
  layout.gathers = grouping.act_order;
  const bool regular = matrix.seen.pieces == 0;
  if (regular && group % kDigitColumns == 0) {
    layout.group_steps = group / kDigitColumns;
    return layout;
  }
  layout.part = kHalf;
  if (regular && group % kHalf == 0) return layout;
  const int last = matrix.columns - (groups - 1) * group;
  const int pieces = regular ? (groups - 1) * cover(group, kHalf) + cover(last, kHalf) : matrix.seen.pieces;
  layout.columns = kHalf * pieces;
  layout.gathers = true;
  return layout;
}

/// Of neighbouring blocks, one pair a unit.
Stream make_stream(const Matrix& matrix, int units) {
  Stream stream{.format = format_kernel(matrix.format), .columns = matrix.columns};
  if (is_integer(matrix.format)) stream.integers = integer_layout(matrix);
  if (is_ggml_block(matrix.format)) stream.integers = block_layout(matrix);
  stream.pairs = units;
  return stream;
}

/// One walk can make both: they are stored alike and read the same activations.
bool walk_together(const MatrixFormats& formats, const SeenWeights& seen, const IntegerLayout& up) {
  return formats.gate == formats.up && formats.gate_grouping == formats.up_grouping && !up.gathers &&
         seen.gate.scales == seen.up.scales && seen.gate.pieces == seen.up.pieces;
}

/// Appends `bytes` to an expert and returns where they start.
std::size_t append(ExpertLayout& layout, std::size_t bytes) {
  const std::size_t offset = layout.bytes;
  layout.bytes += round_up(bytes);
  return offset;
}

void append(ExpertLayout& layout, Stream& stream) {
  if (stream.pairs == 0) return;
  stream.pair_bytes = stream.is_integer() ? stream.integers.pair_bytes(layout.lanes)
                                          : stream.format.layout.pair_bytes(layout.lanes, stream.columns);
  stream.offset = append(layout, stream.bytes());
  if (stream.gathers()) stream.order_offset = append(layout, stream.padded_columns() * sizeof(std::int32_t));
}

}  // namespace

ExpertLayout expert_layout(const ExpertsSpec& spec, int lanes, const SeenWeights& seen) {
  ExpertLayout layout;
  layout.lanes = lanes;
  const MatrixFormats& formats = spec.formats;
  const auto units = [&](int rows) { return (rows + 2 * lanes - 1) / (2 * lanes); };
  const int first = units(spec.intermediate);
  layout.up = make_stream({formats.up, formats.up_grouping, seen.up, spec.hidden}, first);
  if (formats.gate && walk_together(formats, seen, layout.up.integers)) {
    layout.up.pairing = Pairing::gate_with_up;
    layout.up.pairs = 2 * first;
  } else if (formats.gate) {
    layout.gate = make_stream({*formats.gate, formats.gate_grouping, seen.gate, spec.hidden}, first);
  }
  layout.down =
      make_stream({formats.down, formats.down_grouping, seen.down, spec.intermediate}, units(spec.hidden));
  append(layout, layout.gate);
  append(layout, layout.up);
  append(layout, layout.down);
  if (spec.gate_up_bias) {
    if (spec.formats.gate) layout.gate_bias = append(layout, spec.intermediate * sizeof(float));
    layout.up_bias = append(layout, spec.intermediate * sizeof(float));
  }
  if (spec.down_bias) layout.down_bias = append(layout, spec.hidden * sizeof(float));
  return layout;
}

Packed::Packed(const Backend& owner, const ExpertsSpec& of, const ExpertLayout& its_layout)
    : Packed(owner, of, its_layout, allocate(of.local_experts * its_layout.bytes)) {}

Packed::Packed(const Backend& owner, const ExpertsSpec& of, const ExpertLayout& its_layout,
               std::shared_ptr<std::byte> memory)
    : PackedExperts(owner, of), layout(its_layout), memory_(std::move(memory)) {}

std::int64_t Packed::bytes() const { return static_cast<std::int64_t>(spec.local_experts * layout.bytes); }

}  // namespace sluice::cpu
