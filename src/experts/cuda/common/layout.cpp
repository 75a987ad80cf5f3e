// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/common/layout.h"

#include <optional>

#include "format/formats.h"

namespace sluice::cuda {
namespace {

std::optional<Storage> find_storage(Format format) {
  if (format == Formats::of<format::Mxfp4>()) return Storage::fp4_e8m0;
  if (format == Formats::of<format::Nvfp4>()) return Storage::fp4_e4m3;
  if (format == Formats::of<format::Mxfp8>()) return Storage::fp8_e8m0;
  if (Formats::set<format::Fp8Block128, format::Fp8Channel, format::Fp8Tensor>().has(format))
    return Storage::fp8_scaled;
  if (format == Formats::of<format::Bf16>()) return Storage::bf16;
  if (format == Formats::of<format::F16>()) return Storage::f16;
  if (format == Formats::of<format::Q4_0>()) return Storage::int4_g32;
  if (format == Formats::of<format::Q8_0>()) return Storage::int8_g32;
  if (format == Formats::of<format::Q4K>()) return Storage::q4_k;
  if (format == Formats::of<format::Q5K>()) return Storage::q5_k;
  if (format == Formats::of<format::Q6K>()) return Storage::q6_k;
  if (is_integer(format)) return geometry(format).code_bits <= 4 ? Storage::int4_g128 : Storage::int8_g128;
  return std::nullopt;
}

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

/// Columns are not packed as they are: act-order makes a difference, or the storage does.
bool packs_in_an_order(Storage storage, const Grouping& grouping, int columns) {
  return has_own_order(storage) ||
         (grouping.act_order && grouping.columns != 0 && grouping.columns < columns);
}

/// Copies to shared memory start at multiples of 16 bytes; a multiple of 256 lets neighbours share no line.
constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

struct Shape {
  int rows, cols;
  bool paired;
};

/// Lays a matrix out behind `end` and moves it.
StripsLayout lay_out(Storage storage, const Shape& shape, std::int64_t& end) {
  const bool paired = shape.paired;
  StripsLayout at{.storage = storage,
                  .paired = paired,
                  .rows = shape.rows,
                  .strips = divide_up(shape.rows, paired ? kStripRows / 2 : kStripRows),
                  .k_blocks = divide_up(shape.cols, kBlockColumns)};
  const std::int64_t floats = std::int64_t{at.strips} * kStripRows * 4;
  at.blocks = end;
  at.factors = aligned(at.blocks + at.strips * at.strip_bytes());
  at.bias = aligned(at.factors + floats);
  end = aligned(at.bias + floats);
  return at;
}

}  // namespace

bool has_storage(Format format) { return find_storage(format).has_value(); }

Storage storage_of(Format format, const Grouping& grouping) {
  const Storage storage = find_storage(format).value();
  if (grouping.columns % kBlockColumns == 0) return storage;
  return storage == Storage::int4_g128 ? Storage::int4_g32 : Storage::int8_g32;
}

ExpertLayout expert_layout(const ExpertsSpec& spec, const PackedColumns& columns) {
  const MatrixFormats& formats = spec.formats;
  const int hidden = columns.up != 0 ? columns.up : spec.hidden;
  const int intermediate = columns.down != 0 ? columns.down : spec.intermediate;
  ExpertLayout layout;
  layout.up = lay_out(storage_of(formats.up, formats.up_grouping),
                      {intermediate, hidden, formats.gate.has_value()}, layout.bytes);
  layout.down = lay_out(storage_of(formats.down, formats.down_grouping), {spec.hidden, intermediate, false},
                        layout.bytes);
  if (packs_in_an_order(layout.up.storage, formats.up_grouping, spec.hidden)) {
    layout.gathered = hidden;
    layout.order = layout.bytes;
    layout.bytes = aligned(layout.bytes + std::int64_t{hidden} * 4);
  }
  if (spec.lora_rank > 0 &&
      packs_in_an_order(layout.down.storage, formats.down_grouping, spec.intermediate)) {
    layout.channels = layout.bytes;
    layout.bytes = aligned(layout.bytes + std::int64_t{intermediate} * 4);
  }
  return layout;
}

}  // namespace sluice::cuda
