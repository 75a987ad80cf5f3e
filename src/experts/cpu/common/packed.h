// SPDX-License-Identifier: Apache-2.0
// The packed experts of a CPU backend: where everything lies, and the memory.
//
// An expert is a run of streams, then its biases. A stream is consecutive pairs (layout.h) of one matrix, or
// of gate and up together where they have one format, so that one walk makes both and the activation is
// applied to the sums. Work is cut in units of two blocks of rows: of gate and up alike in the first half, of
// down in the second.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "experts/backend.h"
#include "experts/cpu/common/formats.h"
#include "experts/cpu/common/memory.h"

namespace sluice::cpu {

/// What the two blocks of a pair are.
enum class Pairing : std::uint8_t {
  gate_with_up,  // block b of gate, block b of up: two pairs a unit
  neighbours,    // blocks 2p and 2p + 1 of one matrix: one pair a unit
};

struct Stream {
  FormatKernel format{};
  Pairing pairing = Pairing::neighbours;
  int columns = 0;
  int pairs = 0;
  std::size_t pair_bytes = 0;
  std::size_t offset = 0;  // within an expert

  std::size_t bytes() const { return pairs * pair_bytes; }
  int groups() const { return format.layout.groups(columns); }
  int padded_columns() const { return groups() * format.layout.group; }
  /// Columns that its kernels read as digits, of a stream in use.
  int digit_columns() const { return pairs == 0 || format.digits == nullptr ? 0 : columns; }
};

/// The same for every expert of a spec. Streams in use have pairs; offsets are multiples of 64.
struct ExpertLayout {
  int lanes = 0;
  Stream gate;  // alone only where its format is not up's
  Stream up;    // with the gate where the formats agree
  Stream down;
  std::size_t gate_bias = 0, up_bias = 0, down_bias = 0;  // float32 each, where the spec has them
  std::size_t bytes = 0;

  int unit_rows() const { return 2 * lanes; }
  /// Units of gate and up.
  int first_units() const { return up.pairs / (up.pairing == Pairing::gate_with_up ? 2 : 1); }
  int first_digit_columns() const { return std::max(gate.digit_columns(), up.digit_columns()); }
  std::size_t first_unit_bytes() const { return (gate.bytes() + up.bytes()) / first_units(); }
};

ExpertLayout expert_layout(const ExpertsSpec& spec, int lanes);

class Packed final : public PackedExperts {
 public:
  Packed(const Backend& owner, const ExpertsSpec& of, int lanes);
  std::int64_t bytes() const override;

  std::byte* expert(int local) { return memory_.get() + local * layout.bytes; }
  const std::byte* expert(int local) const { return memory_.get() + local * layout.bytes; }

  const ExpertLayout layout;

 private:
  Memory memory_;
};

}  // namespace sluice::cpu
