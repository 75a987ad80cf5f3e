// SPDX-License-Identifier: Apache-2.0
// The definition: what a set of experts computes for one token, in double, written to be read. Everything
// else in the library is measured against it.
//
//   gate = W_gate x + b_gate      up = W_up x + b_up          [intermediate]
//   mid  = activation(gate, up, params)
//   y    = sum over the token's experts e of  w_e (W_down mid + b_down)        [hidden]
//
// A token with an adapter has W x + scale B (A x) for every W x above, so that bias, clamp and activation
// come after its delta.
//
// A backend may declare that it rounds rows before they are multiplied (accuracy in experts/backend.h). Its
// definition is this one with the same rounding of x and of mid, what adapters read excepted; Token::round.
//
// With weight_on_input x becomes w_e x and the sum is unweighted. An id that names no local expert adds
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "experts/backend.h"
#include "sluice/lora.h"
#include "sluice/spec.h"

namespace sluice::reference {

struct Experts {
  const ExpertsSpec& spec;
  std::span<const ExpertWeights> local;
  std::span<const std::int32_t> expert_map = {};  // [experts] -> local or -1; empty: identity
};

/// A row of a product and what it may be off by.
struct Row {
  const double* x = nullptr;
  const double* reach = nullptr;  // independent of each other; null: nothing
  const double* slack = nullptr;  // of rounded rows: not independent; null: nothing
};

/// What a backend may be off by before it rounds, in reaches: the 4 roundings of 2^-24 that comparisons
/// allow.
inline constexpr double kRoundedPart = 0x1p-22;

/// Rounds a row into `rounded`. Where a backend that is off by its float32 sums rounds to something else, by
/// how much goes to `slack`, in the unit of the reach. False where a backend rounds no such row.
using Round = bool (*)(const Row& row, int columns, double* rounded, double* slack);

struct Token {
  const double* x = nullptr;          // [hidden]
  const std::int32_t* ids = nullptr;  // [top_k]
  const float* weights = nullptr;     // [top_k]
  int top_k = 0;
  const LoraCall* lora = nullptr;   // null: no adapter
  int lora_token = 0;               // which of its tokens this is
  const double* x_reach = nullptr;  // [hidden] what x may be off by, like Observed::magnitude; null: nothing
  Round round = nullptr;            // null: nothing is rounded
};

/// What a comparison wants to know beside the result.
struct Observed {
  /// [hidden] How large the numbers behind each output element were, whose roundings it carries: the absolute
  /// products of its own sum, and what gate and up move it by when each is off by its own magnitude. The
  /// latter are independent of each other and add up as squares. Empty: not wanted.
  std::span<double> magnitude = {};
  std::int64_t values = 0;           // activations computed
  std::int64_t gate_over_limit = 0;  // of which gate > limit
  std::int64_t up_over_limit = 0;    // of which |up| > limit
};

/// Doubles of scratch for one token.
std::size_t scratch_doubles(const ExpertsSpec& spec);

/// Computes one token into y, [hidden]. Allocates nothing.
void compute(const Experts& experts, const Token& token, double* y, std::span<double> scratch,
             Observed* observed = nullptr);

}  // namespace sluice::reference
