// SPDX-License-Identifier: Apache-2.0
// Drawn routing whose experts are equally popular or not.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/spec.h"

namespace sluice::testing {

/// How often experts are chosen: all alike, or in proportion to 1, 1/2, 1/3, ... in an order that is drawn.
enum class Popularity : std::uint8_t { uniform, zipf };

/// Logits [tokens, experts]. The largest of a token are a draw of experts without replacement by their
/// popularity: its logarithm, and noise of Gumbel's distribution.
std::vector<float> draw_logits(int tokens, int experts, Popularity popularity, std::uint64_t seed);

/// [tokens, top_k]: the largest of every token's logits, the largest first.
std::vector<std::int32_t> largest(const std::vector<float>& logits, int experts, int top_k);

/// How many experts occur. What is below 0 is none.
int distinct_experts(const std::vector<std::int32_t>& ids, int experts);

}  // namespace sluice::testing
