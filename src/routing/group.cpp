// SPDX-License-Identifier: Apache-2.0
// A counting sort: count, sum up, place.
#include "routing/group.h"

#include <algorithm>

namespace sluice {

int group_by_expert(const Routing& routing, std::span<const std::int32_t> expert_map, int experts,
                    std::span<std::int32_t> offsets, std::span<std::int32_t> slots) {
  const auto local_experts = static_cast<std::int32_t>(offsets.size()) - 1;
  const std::int32_t all = routing.tokens * routing.top_k;
  // A map that points past the local experts would write out of bounds; such a slot has no expert here.
  const auto local = [&](std::int32_t slot) {
    const std::int32_t e = local_expert(routing.ids[slot], expert_map, experts);
    return e < local_experts ? e : -1;
  };
  std::fill(offsets.begin(), offsets.end(), 0);
  for (std::int32_t slot = 0; slot < all; ++slot)
    if (const std::int32_t e = local(slot); e >= 0) ++offsets[static_cast<std::size_t>(e) + 1];
  for (std::size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];

  // Placing moves each offset to the start of the next expert; afterwards they are shifted back by one.
  for (std::int32_t slot = 0; slot < all; ++slot)
    if (const std::int32_t e = local(slot); e >= 0)
      slots[static_cast<std::size_t>(offsets[static_cast<std::size_t>(e)]++)] = slot;
  std::copy_backward(offsets.begin(), offsets.end() - 1, offsets.end());
  offsets[0] = 0;
  return offsets[static_cast<std::size_t>(local_experts)];
}

}  // namespace sluice
