// SPDX-License-Identifier: Apache-2.0
// What calls on the processor's memory and on a card's have in common when they are cut.
#pragma once

#include <cstddef>

#include "sluice/spec.h"

namespace sluice {

/// Makes `part`, a copy of a whole call, the `count` tokens from `first` on: inputs, routing and outputs.
template <class Call>
void move_to_part(Call& part, const LayerSpec& spec, int first, int count) {
  const std::ptrdiff_t hidden = std::ptrdiff_t{first} * spec.hidden();
  const std::ptrdiff_t slot = std::ptrdiff_t{first} * spec.routed.top_k;
  part.hidden.data += first * part.hidden.row_stride;
  part.hidden.rows = count;
  if (part.routing.ids) {
    part.routing.ids += slot;
    part.routing.weights += slot;
    part.routing.tokens = count;
  }
  if (part.experts_out) part.experts_out += hidden;
  if (part.shared_out) part.shared_out += hidden;
  if (part.block_out) part.block_out += hidden;
  if (part.topk_ids) part.topk_ids += slot;
  if (part.topk_weights) part.topk_weights += slot;
}

}  // namespace sluice
