// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/workspace.h"

#include <algorithm>

#include "experts/cpu/common/int8.h"
#include "experts/cpu/common/to_digits.h"

namespace sluice::cpu {
namespace {

/// Hands out lines of memory, or only counts them.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <class T>
  T* take(std::size_t count) {
    std::byte* at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }

  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

/// Rows start on cache lines, and are padded to whole steps of digits.
std::size_t row_floats(int columns) {
  static_assert(kDigitColumns % 16 == 0);
  return (static_cast<std::size_t>(columns) + kDigitColumns - 1) / kDigitColumns * kDigitColumns;
}

/// Columns that a stream has in the order it reads them, if that is one of its own.
std::size_t gathered_floats(const Stream& stream) {
  return stream.gathers() ? row_floats(stream.padded_columns()) : 0;
}

/// Of rows in either form; int8 is the shorter one, and there are streams that have no other.
std::size_t digits_stride(int columns) {
  static_assert(sizeof(Int8Columns) <= sizeof(ByteDigits));
  return (digit_bytes(columns) + 63) / 64 * 64;
}

/// Room for `count` rows of digits and, where `floats` is not 0, of copies.
Staged take(Carver& carver, std::size_t count, std::size_t floats, std::size_t digits) {
  Staged staged;
  staged.rows = carver.take<float>(count * floats);
  staged.stride = floats;
  staged.digits = carver.take<std::byte>(count * digits);
  staged.digits_stride = digits;
  staged.fixed = carver.take<bool>(count);
  return staged;
}

/// The rows themselves, where no stream needs a copy of them.
void read_in_place(const Stream& stream, float* rows, std::size_t stride, Staged& staged) {
  if (stream.gathers()) return;
  staged.rows = rows;
  staged.stride = stride;
}

void take_staged(const ExpertLayout& layout, std::size_t count, Carver& carver, Workspace& work) {
  const bool shared = layout.shares_input();
  const int first = std::max(shared ? layout.gate.int8_columns() : 0, layout.up.int8_columns());
  work.up = take(carver, count, std::max(gathered_floats(layout.up), gathered_floats(layout.down)),
                 digits_stride(std::max(first, layout.down.int8_columns())));
  work.down = work.up;
  read_in_place(layout.up, work.input, work.input_stride, work.up);
  read_in_place(layout.down, work.mid, work.mid_stride, work.down);
  work.gate = work.up;
  if (shared) return;
  work.gate = take(carver, count, gathered_floats(layout.gate), digits_stride(layout.gate.int8_columns()));
  read_in_place(layout.gate, work.input, work.input_stride, work.gate);
}

/// A line more than a row, so that rows of 4096 columns do not all start in one set of a cache.
void take_bf16(const WorkspaceFor& wanted, int columns, Carver& carver, Staged& staged) {
  const auto count = static_cast<std::size_t>(wanted.slots);
  staged.bf16_term = row_floats(columns) / 2 + 16;
  staged.bf16_stride = static_cast<std::size_t>(wanted.terms) * staged.bf16_term;
  staged.bf16 = carver.take<std::int32_t>(count * staged.bf16_stride);
  staged.terms = carver.take<std::int8_t>(count);
}

/// What down reads is float32, which one term never is.
void take_bf16(const ExpertLayout& layout, const WorkspaceFor& wanted, Carver& carver, Workspace& work) {
  const int gate = layout.gate.bf16_columns(), up = layout.up.bf16_columns();
  const bool shared = layout.shares_input();
  const int down = wanted.terms > 1 ? layout.down.bf16_columns() : 0;
  take_bf16(wanted, std::max({shared ? gate : 0, up, down}), carver, work.up);
  if (down != 0) {
    work.down.bf16 = work.up.bf16;
    work.down.terms = work.up.terms;
    work.down.bf16_stride = work.up.bf16_stride;
    work.down.bf16_term = work.up.bf16_term;
  }
  if (shared) {
    work.gate = work.up;
  } else {
    take_bf16(wanted, gate, carver, work.gate);
  }
}

}  // namespace

Workspace make_workspace(const Packed& packed, const WorkspaceFor& wanted, std::byte* memory) {
  const ExpertLayout& layout = packed.layout;
  Workspace work;
  work.input_stride = row_floats(std::max(layout.gate.padded_columns(), layout.up.padded_columns()));
  work.mid_stride = row_floats(layout.down.padded_columns());
  work.out_stride = row_floats(layout.down.pairs * layout.unit_rows());
  work.scratch_stride = std::size_t{2} * kTokenChunk * layout.unit_rows();

  Carver carver(memory);
  const auto count = static_cast<std::size_t>(wanted.slots);
  work.offsets = carver.take<std::int32_t>(packed.spec.local_experts + 1);
  work.slots = carver.take<std::int32_t>(count);
  work.positions = carver.take<std::int32_t>(count);
  work.active = carver.take<std::int32_t>(packed.spec.local_experts);
  work.input = carver.take<float>(count * work.input_stride);
  work.mid = carver.take<float>(count * work.mid_stride);
  work.out = carver.take<float>(count * work.out_stride);
  take_staged(layout, count, carver, work);
  if (wanted.terms > 0) take_bf16(layout, wanted, carver, work);
  if (packed.spec.lora_rank > 0) {
    work.low_stride = row_floats(packed.spec.lora_rank);
    work.deltas = carver.take<const LoraExpert*>(count);
    work.low = carver.take<float>(count * 2 * work.low_stride);
  }
  work.scratch = carver.take<float>(wanted.workers * work.scratch_stride);
  work.bytes = carver.used();
  return work;
}

}  // namespace sluice::cpu
