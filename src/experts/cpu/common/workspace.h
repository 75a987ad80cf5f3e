// SPDX-License-Identifier: Apache-2.0
// What a call keeps while it runs, laid out in the caller's workspace.
//
// A position is a place in the list of slots sorted by expert (routing/group.h), so that an expert's tokens
// are neighbours in every matrix below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "experts/cpu/common/packed.h"
#include "sluice/lora.h"

namespace sluice::cpu {

/// Tokens that a worker takes through one unit of rows at a time: its sums stay in the first-level cache.
inline constexpr int kTokenChunk = 64;

/// What a product reads: a row a position, and the same in fixed point and as bf16 for kernels that read
/// those.
struct Staged {
  float* rows = nullptr;        // [positions, stride]
  std::byte* digits = nullptr;  // [positions, digits_stride]
  bool* fixed = nullptr;        // [positions] whether the digits hold the row (to_digits.h)
  std::size_t stride = 0;       // in floats
  std::size_t digits_stride = 0;
  // [positions, terms, bf16_term]; null where the kernels have no use for it
  std::int32_t* bf16 = nullptr;
  std::int8_t* terms = nullptr;                // [positions] of the row (bf16_pairs.h); 0 where it has none
  std::size_t bf16_stride = 0, bf16_term = 0;  // in pairs

  float* row(int position) const { return rows + position * stride; }
};

struct Workspace {
  std::int32_t* offsets = nullptr;    // [local_experts + 1] positions of each expert
  std::int32_t* slots = nullptr;      // [slots] position -> slot
  std::int32_t* positions = nullptr;  // [slots] slot -> position, or -1
  std::int32_t* active = nullptr;     // [local_experts] experts with tokens, most tokens first
  float* input = nullptr;             // [positions, input_stride]
  float* mid = nullptr;               // [positions, mid_stride]
  float* out = nullptr;               // [positions, out_stride], before weights and biases
  // Gate's and up's are one unless either gathers columns (packed.h); then rows are copies in that order.
  // Up's and down's memory is the same: up is done when `mid` is there.
  Staged gate, up, down;
  // Only for a layer that takes adapters.
  const LoraExpert** deltas = nullptr;  // [positions] what its token's adapter adds; null for nothing
  float* low = nullptr;                 // [positions, 2, low_stride] scale A x of gate, or later down; of up
  float* scratch = nullptr;  // [workers, scratch_stride]: gate sums, then up sums, [tokens, unit_rows] each

  std::size_t input_stride = 0, mid_stride = 0, out_stride = 0, scratch_stride = 0;  // in floats
  std::size_t low_stride = 0;
  std::size_t bytes = 0;

  const LoraExpert* delta(int position) const { return deltas == nullptr ? nullptr : deltas[position]; }
  float* low_of(int position) const { return low + position * 2 * low_stride; }
};

struct WorkspaceFor {
  std::int64_t slots;  // tokens * top_k
  int workers;
  int terms;  // that the kernels read of bf16; 0 where they read none
};

/// Lays a call out at `memory`, which may be null when only the size is wanted.
Workspace make_workspace(const Packed& packed, const WorkspaceFor& wanted, std::byte* memory);

}  // namespace sluice::cpu
