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
  return std::nullopt;
}

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

/// Copies to shared memory start at multiples of 16 bytes; a multiple of 256 lets neighbours share no line.
constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

struct Shape {
  int rows, cols;
};

/// Lays a matrix out behind `end` and moves it.
StripsLayout lay_out(Format format, bool paired, Shape shape, std::int64_t& end) {
  StripsLayout at{.storage = storage_of(format),
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

Storage storage_of(Format format) { return find_storage(format).value(); }

ExpertLayout expert_layout(const ExpertsSpec& spec) {
  ExpertLayout layout;
  layout.up =
      lay_out(spec.formats.up, spec.formats.gate.has_value(), {spec.intermediate, spec.hidden}, layout.bytes);
  layout.down = lay_out(spec.formats.down, false, {spec.hidden, spec.intermediate}, layout.bytes);
  return layout;
}

}  // namespace sluice::cuda
