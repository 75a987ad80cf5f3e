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
#include <memory>
#include <span>
#include <utility>

#include "experts/backend.h"
#include "experts/cpu/common/bf16_pairs.h"
#include "experts/cpu/common/digits.h"
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
  IntegerLayout integers{};  // bits of 0 where the format is none of theirs
  Pairing pairing = Pairing::neighbours;
  int columns = 0;
  int pairs = 0;
  std::size_t pair_bytes = 0;
  std::size_t offset = 0;  // within an expert
  std::size_t order_offset =
      0;  // of int32 [padded columns], where integers gather: the column, -1 for padding

  std::size_t bytes() const { return pairs * pair_bytes; }
  bool is_integer() const { return integers.bits != 0; }
  int groups() const { return is_integer() ? integers.steps() : format.layout.groups(columns); }
  int padded_columns() const { return groups() * (is_integer() ? kDigitColumns : format.layout.group); }
  /// Columns that its kernels read as digits, of a stream in use.
  int digit_columns() const {
    if (pairs == 0) return 0;
    if (is_integer()) return integers.has_digits() ? integers.columns : 0;
    return format.digits == nullptr ? 0 : columns;
  }
  /// Columns that its kernels read as int8 instead, where those are the table's: all of what has digits, and
  /// the integers that lose too much of them.
  int int8_columns() const { return pairs != 0 && is_integer() ? integers.columns : digit_columns(); }
  /// Columns that its kernels read as pairs of bf16, if they can.
  int bf16_columns() const { return pairs == 0 ? 0 : padded_columns(); }
  PairOrder bf16_order() const {
    return is_integer() || format.layout.codes == Codes::fp4 ? PairOrder::halves : PairOrder::neighbours;
  }
  bool gathers() const { return pairs != 0 && integers.gathers; }
  const std::int32_t* order(const std::byte* expert) const {
    return reinterpret_cast<const std::int32_t*>(expert + order_offset);
  }
};

/// What a spec does not say of the integers of a kind of matrix, and packing sees in the weights. The default
/// is what packed_bytes assumes.
struct SeenIntegers {
  ScaleType scales = ScaleType::f16;
  int pieces = 0;  // of 16 columns, where an act-order has groups of other sizes than declared; or 0
};
struct SeenWeights {
  SeenIntegers gate, up, down;
};
SeenWeights look_at(std::span<const ExpertWeights> experts);

/// The same for every expert of a spec. Streams in use have pairs; offsets are multiples of 64.
struct ExpertLayout {
  int lanes = 0;
  Stream gate;  // alone only where it is stored in another way than up, or either in an order of its own
  Stream up;    // with the gate otherwise
  Stream down;
  std::size_t gate_bias = 0, up_bias = 0, down_bias = 0;  // float32 each, where the spec has them
  std::size_t bytes = 0;

  int unit_rows() const { return 2 * lanes; }
  /// Units of gate and up.
  int first_units() const { return up.pairs / (up.pairing == Pairing::gate_with_up ? 2 : 1); }
  /// Gate and up read the same digits and pairs of bf16, or each its own.
  bool shares_input() const {
    return !gate.gathers() && !up.gathers() && (gate.pairs == 0 || gate.bf16_order() == up.bf16_order());
  }
  std::size_t first_unit_bytes() const { return (gate.bytes() + up.bytes()) / first_units(); }
};

ExpertLayout expert_layout(const ExpertsSpec& spec, int lanes, const SeenWeights& seen = {});

class Packed final : public PackedExperts {
 public:
  /// In memory of its own.
  Packed(const Backend& owner, const ExpertsSpec& of, const ExpertLayout& layout);
  /// In `memory`, which holds local_experts * layout.bytes.
  Packed(const Backend& owner, const ExpertsSpec& of, const ExpertLayout& layout,
         std::shared_ptr<std::byte> memory);
  std::int64_t bytes() const override;

  std::byte* expert(int local) { return memory_.get() + local * layout.bytes; }
  const std::byte* expert(int local) const { return memory_.get() + local * layout.bytes; }

  const ExpertLayout layout;

 private:
  std::shared_ptr<std::byte> memory_;
};

}  // namespace sluice::cpu
