// SPDX-License-Identifier: Apache-2.0
// From "which experts does a token go to" to "which tokens does an expert get".
#pragma once

#include <cstdint>
#include <span>

#include "sluice/routing.h"

namespace sluice {

/// The local expert a global id stands for, or -1: ids that are negative, out of range or mapped elsewhere.
/// `expert_map` is [experts], or empty for the identity.
inline std::int32_t local_expert(std::int32_t id, std::span<const std::int32_t> expert_map, int experts) {
  if (id < 0 || id >= experts) return -1;
  return expert_map.empty() ? id : expert_map[static_cast<std::size_t>(id)];
}

/// A slot is token * top_k + j. `slots[offsets[e] .. offsets[e + 1])` are the slots of local expert e,
/// ascending, so the order in which a token's experts are summed does not depend on anything but its own ids.
/// Slots that name no local expert are left out. `offsets` holds local_experts + 1 and `slots` tokens *
/// top_k. Returns the slots used.
int group_by_expert(const Routing& routing, std::span<const std::int32_t> expert_map, int experts,
                    std::span<std::int32_t> offsets, std::span<std::int32_t> slots);

}  // namespace sluice
