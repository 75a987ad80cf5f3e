// SPDX-License-Identifier: Apache-2.0
// Flat calls on a layer whose experts differ in format. Each group of experts with equal formats is packed by
// itself and runs the slots that are its own, as rows that are with their experts; then each token's slots
// are summed in the order of its ids. No sum depends on how the experts are grouped
// (docs/decisions/015-mixed-experts.md).
#include <algorithm>

#include "engine/packed_layer.h"
#include "engine/places.h"
#include "routing/group.h"

namespace sluice {

/// Lists the slots of a group in ascending order and marks them as computed. Returns how many.
int PackedLayer::list_slots(const LayerCall& call, const MixedPlaces& at, const Routing& routing,
                            std::size_t group) const {
  const ExpertsSpec& routed = spec().routed;
  auto* const rows = place<std::int32_t>(call.workspace, at.rows);
  auto* const output_rows = place<std::int32_t>(call.workspace, at.output_rows);
  auto* const ids = place<std::int32_t>(call.workspace, at.ids);
  auto* const weights = place<float>(call.workspace, at.weights);
  auto* const adapter_ids = place<std::int32_t>(call.workspace, at.adapter_ids);
  auto* const row_of_slot = place<std::int32_t>(call.workspace, at.row_of_slot);
  int count = 0;
  for (int slot = 0; slot < routing.tokens * routing.top_k; ++slot) {
    const std::int32_t local = local_expert(routing.ids[slot], expert_map_, routed.experts);
    if (local < 0) continue;
    const GroupPlace& expert = places_[static_cast<std::size_t>(local)];
    if (expert.group != group) continue;
    const int token = slot / routing.top_k;
    rows[count] = token;
    output_rows[count] = slot;
    ids[count] = expert.local;
    weights[count] = routed.weight_on_input ? routing.weights[slot] : 1.0f;
    adapter_ids[count++] = call.adapter_ids.empty() ? -1 : call.adapter_ids[static_cast<std::size_t>(token)];
    row_of_slot[slot] = slot;
  }
  return count;
}

void PackedLayer::run_groups(const LayerCall& call, const MixedPlaces& at, const Routing& routing,
                             float* output) const {
  const std::size_t top_k = static_cast<std::size_t>(routing.top_k);
  const int hidden = spec().routed.hidden;
  auto* const row_of_slot = place<std::int32_t>(call.workspace, at.row_of_slot);
  auto* const results = place<float>(call.workspace, at.results);
  std::fill_n(row_of_slot, static_cast<std::size_t>(routing.tokens) * top_k, -1);
  for (std::size_t group = 0; group < routed_.size(); ++group) {
    const int count = list_slots(call, at, routing, group);
    if (count == 0) continue;
    const std::size_t used = static_cast<std::size_t>(count);
    const PackedExperts& packed = *routed_[group].packed;
    const LoraCall lora{.adapters = call.adapters,
                        .ids = {place<std::int32_t>(call.workspace, at.adapter_ids), used},
                        .positions = routed_[group].experts};
    run_kernel(packed, tokens_of(count),
               {.input = call.hidden,
                .routing = {place<std::int32_t>(call.workspace, at.ids),
                            place<float>(call.workspace, at.weights), count, 1},
                .rows = {place<std::int32_t>(call.workspace, at.rows), used},
                .output_rows = {place<std::int32_t>(call.workspace, at.output_rows), used},
                .output = results,
                .workspace = {place<std::byte>(call.workspace, 0), kernel_bytes(packed, call.hidden.rows)},
                .executor = executor_.get(),
                .lora = call.adapter_ids.empty() ? nullptr : &lora});
  }
  parallel_for(*executor_, routing.tokens, [&](int token, int) {
    const std::ptrdiff_t slot = token * std::ptrdiff_t{routing.top_k};
    const float* const weights = spec().routed.weight_on_input ? nullptr : routing.weights + slot;
    combine({routing.ids + slot, weights, 1, routing.top_k}, {row_of_slot + slot, top_k}, results, hidden,
            output + token * std::ptrdiff_t{hidden});
  });
}

}  // namespace sluice
