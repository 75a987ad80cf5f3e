// SPDX-License-Identifier: Apache-2.0
// From the two matrices that PEFT stores for a module to the deltas of experts, as views.
#pragma once

#include <cstdint>
#include <string_view>

#include "sluice/lora.h"

namespace sluice::checkpoint {

/// The weight that a module holds, or each expert of a stack does: y = W x.
struct WeightShape {
  std::int64_t out = 0, in = 0;
};

/// A stack of experts. A is [experts * rank, ...] with expert e's rows together; B is [..., rank * experts]
/// with the columns of one rank together (PEFT, ParamWrapper.get_delta_weight).
struct LoraStack {
  TensorView a, b;
  std::int64_t experts = 0, rank = 0;
  WeightShape weight;
};

/// A dense [rows, cols] tensor.
LoraMatrix matrix_of(const TensorView& tensor);
LoraMatrix transposed(LoraMatrix matrix);
/// The stack's parts for one expert, where A reads the weight's inputs.
LoraDelta plain_part(const LoraStack& stack, std::int64_t expert);
/// And where A reads the weight's outputs, so that A and B trade places (StackOrder).
LoraDelta swapped_part(const LoraStack& stack, std::int64_t expert);

/// How the rows of a gate_up weight are shared out.
enum class GateUp : std::uint8_t { halves, turns };
LoraDelta gate_of(LoraDelta both, GateUp order);
LoraDelta up_of(LoraDelta both, GateUp order);

/// What PEFT takes the last dimension of a stack [experts, ., .] for: since 0.19 it reads the weight's inputs
/// there, and before it read the first one's.
enum class StackOrder : std::uint8_t {
  outputs_first,          // [experts, out, in]
  inputs_first,           // [experts, in, out], and the model says so (is_transposed)
  inputs_first_unmarked,  // [experts, in, out], which PEFT does not know: A reads the weight's outputs
};

/// The order in which transformers fuses gate and up for a model_type, and how it stores its stacks. Tested
/// against adapters that PEFT wrote (tests/data/adapters).
struct StackRule {
  GateUp gate_up = GateUp::halves;
  StackOrder order = StackOrder::outputs_first;
};
StackRule stack_rule(std::string_view model_type);

}  // namespace sluice::checkpoint
