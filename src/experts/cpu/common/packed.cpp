// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/packed.h"

namespace sluice::cpu {
namespace {

constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

Stream make_stream(Format format, int units, Pairing pairing, int columns) {
  Stream stream{.format = format_kernel(format), .pairing = pairing, .columns = columns};
  stream.pairs = pairing == Pairing::gate_with_up ? 2 * units : units;
  return stream;
}

/// Appends `bytes` to an expert and returns where they start.
std::size_t append(ExpertLayout& layout, std::size_t bytes) {
  const std::size_t offset = layout.bytes;
  layout.bytes += round_up(bytes);
  return offset;
}

void append(ExpertLayout& layout, Stream& stream) {
  if (stream.pairs == 0) return;
  stream.pair_bytes = stream.format.layout.pair_bytes(layout.lanes, stream.columns);
  stream.offset = append(layout, stream.bytes());
}

}  // namespace

ExpertLayout expert_layout(const ExpertsSpec& spec, int lanes) {
  ExpertLayout layout;
  layout.lanes = lanes;
  const auto units = [&](int rows) { return (rows + 2 * lanes - 1) / (2 * lanes); };
  const int first = units(spec.intermediate);
  const bool together = spec.formats.gate == spec.formats.up;
  if (spec.formats.gate && !together)
    layout.gate = make_stream(*spec.formats.gate, first, Pairing::neighbours, spec.hidden);
  layout.up = make_stream(spec.formats.up, first, together ? Pairing::gate_with_up : Pairing::neighbours,
                          spec.hidden);
  layout.down = make_stream(spec.formats.down, units(spec.hidden), Pairing::neighbours, spec.intermediate);
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

Packed::Packed(const Backend& owner, const ExpertsSpec& of, int lanes)
    : PackedExperts(owner, of),
      layout(expert_layout(of, lanes)),
      memory_(allocate(of.local_experts * layout.bytes)) {}

std::int64_t Packed::bytes() const { return static_cast<std::int64_t>(spec.local_experts * layout.bytes); }

}  // namespace sluice::cpu
