// SPDX-License-Identifier: Apache-2.0
#include "sluice/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/bits.h"
#include "core/error.h"
#include "experts/backend.h"
#include "format/scales.h"
#include "format/sub_matrix.h"

namespace sluice {
namespace {

using format::Owned;
using format::Run;

Run run_of(const IntermediateRange& range) { return {range.first, range.last}; }

void check_range(const IntermediateRange& range, const ExpertsSpec& spec, std::string_view whose) {
  require(range.first >= 0 && range.first < range.last && range.last <= spec.intermediate,
          ErrorKind::invalid_argument, [&] {
            return ErrorInfo{.code = "bad_slice",
                             .what = fmt::format("there is no slice {} to {} of the {} experts", range.first,
                                                 range.last, whose),
                             .why = fmt::format("their intermediate width is {}, and a part has at least one "
                                                "of it",
                                                spec.intermediate),
                             .todo = "Use no more ranks than there are intermediate numbers"};
          });
}

IntermediateRange share(int width, int rank, int ranks) {
  const auto cut = [&](std::int64_t at) { return static_cast<int>(width * at / ranks); };
  return {cut(rank), cut(rank + 1)};
}

/// Where cuts may be, for every matrix of every expert.
std::int64_t cut_unit(const ExpertsSpec& spec) {
  std::int64_t unit = 1;
  for (const FormatGroup& group : format_groups(spec)) {
    const MatrixFormats& formats = group.spec.formats;
    unit = std::lcm(unit, format::row_unit(formats.up));
    if (formats.gate) unit = std::lcm(unit, format::row_unit(*formats.gate));
    unit = std::lcm(unit, format::column_unit(formats.down, formats.down_grouping));
  }
  return unit;
}

IntermediateRange reach_of(const IntermediateRange& range, const ExpertsSpec& spec) {
  const std::int64_t unit = cut_unit(spec);
  const std::int64_t last = (range.last + unit - 1) / unit * unit;
  return {static_cast<int>(range.first / unit * unit),
          static_cast<int>(std::min<std::int64_t>(last, spec.intermediate))};
}

ExpertsSpec part_of(const ExpertsSpec& spec, const IntermediateRange& range, const IntermediateRange& reach) {
  ExpertsSpec part = spec;
  part.intermediate = reach.last - reach.first;
  part.down_bias = spec.down_bias && range.first == 0;
  const auto regroup = [&](MatrixFormats& formats) {
    formats.down_grouping =
        format::grouping_of_part(formats.down_grouping, part.intermediate, spec.intermediate);
  };
  regroup(part.formats);
  for (OtherFormats& other : part.others) regroup(other.formats);
  std::erase_if(part.others, [&](const OtherFormats& other) { return other.formats == part.formats; });
  return part;
}

VectorView part_of(VectorView vector, const IntermediateRange& range) {
  if (!vector) return vector;
  vector.data += range.first * vector.stride;
  vector.size = range.last - range.first;
  return vector;
}

ExpertWeights part_of(const ExpertWeights& expert, const IntermediateRange& range,
                      const IntermediateRange& reach, Owned& owned) {
  const Run mid = run_of(reach), all{0, expert.up.cols};
  const format::Part wide{.rows = mid, .columns = all, .kept = all};
  ExpertWeights part = expert;
  if (expert.gate) part.gate = format::part_of(*expert.gate, wide, owned);
  part.up = format::part_of(expert.up, wide, owned);
  part.down = format::part_of(expert.down,
                              {.rows = {0, expert.down.rows}, .columns = mid, .kept = run_of(range)}, owned);
  part.gate_bias = part_of(expert.gate_bias, reach);
  part.up_bias = part_of(expert.up_bias, reach);
  if (range.first != 0) part.down_bias = {};
  return part;
}

void check_width(std::int64_t width, int last) {
  require(width >= last, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "bad_slice",
                     .what = fmt::format("the adapter is {} wide, the slice ends at {}", width, last),
                     .todo = "Give an adapter of the whole layer"};
  });
}

/// B of gate and up has the reach's rows.
LoraDelta rows_of(LoraDelta delta, const IntermediateRange& reach) {
  if (!delta) return delta;
  check_width(delta.b.rows, reach.last);
  delta.b.data += reach.first * delta.b.row_stride;
  delta.b.rows = reach.last - reach.first;
  return delta;
}

/// A of down has the reach's columns, those of other ranks zero: copied as float32.
LoraDelta columns_of(const LoraDelta& delta, const IntermediateRange& range, const IntermediateRange& reach,
                     Owned& owned) {
  if (!delta) return delta;
  check_width(delta.a.cols, range.last);
  const std::int64_t columns = reach.last - reach.first;
  auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(delta.a.rows * columns));
  for (std::int64_t r = 0; r < delta.a.rows; ++r)
    for (std::int64_t c = range.first; c < range.last; ++c)
      (*values)[static_cast<std::size_t>(r * columns + c - reach.first)] =
          format::read_number(delta.a.dtype, delta.a.data + r * delta.a.row_stride + c * delta.a.col_stride);
  LoraDelta part = delta;
  part.a = {
      reinterpret_cast<const std::byte*>(values->data()), DType::f32, delta.a.rows, columns, 4 * columns, 4};
  owned.push_back(std::move(values));
  return part;
}

/// An owner of the copies and of what the views borrow from.
std::shared_ptr<const void> owner_of(std::shared_ptr<const void> whole, Owned owned) {
  owned.push_back(std::move(whole));
  return std::make_shared<const Owned>(std::move(owned));
}

}  // namespace

SliceRange even_share(const LayerSpec& spec, int rank, int ranks) {
  require(ranks > 0 && rank >= 0 && rank < ranks, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "bad_slice",
                     .what = fmt::format("there is no rank {} of {}", rank, ranks),
                     .todo = "Count ranks from 0"};
  });
  SliceRange range{.routed = share(spec.routed.intermediate, rank, ranks)};
  if (spec.shared) range.shared = share(spec.shared->experts.intermediate, rank, ranks);
  return range;
}

LayerSlice slice(const LayerSpec& spec, const LayerWeights& weights, const SliceRange& range) {
  validate(spec, weights);
  check_range(range.routed, spec.routed, "routed");
  LayerSlice part{.spec = spec, .weights = weights, .range = range, .reach = {}};
  Owned owned;
  part.reach.routed = reach_of(range.routed, spec.routed);
  part.spec.routed = part_of(spec.routed, range.routed, part.reach.routed);
  const bool whole = range.routed.first == 0 && range.routed.last == spec.routed.intermediate;
  if (part.spec.latent && part.spec.latent->norm_epsilon && !whole) part.spec.latent->part = true;
  for (ExpertWeights& expert : part.weights.routed)
    expert = part_of(expert, range.routed, part.reach.routed, owned);
  if (spec.shared) {
    const ExpertsSpec& shared = spec.shared->experts;
    check_range(range.shared, shared, "shared");
    part.reach.shared = reach_of(range.shared, shared);
    part.spec.shared->experts = part_of(shared, range.shared, part.reach.shared);
    part.weights.shared.front() = part_of(weights.shared.front(), range.shared, part.reach.shared, owned);
  }
  part.weights.owner = owner_of(weights.owner, std::move(owned));
  return part;
}

LoraAdapter slice(const LoraAdapter& adapter, const LayerSlice& part) {
  LoraAdapter made = adapter;
  Owned owned;
  const auto cut = [&](LoraExpert& expert, const IntermediateRange& range, const IntermediateRange& reach) {
    expert = {.gate = rows_of(expert.gate, reach),
              .up = rows_of(expert.up, reach),
              .down = columns_of(expert.down, range, reach, owned)};
  };
  for (LoraExpert& expert : made.routed) cut(expert, part.range.routed, part.reach.routed);
  for (LoraExpert& expert : made.shared) cut(expert, part.range.shared, part.reach.shared);
  made.owner = owner_of(adapter.owner, std::move(owned));
  return made;
}

}  // namespace sluice
