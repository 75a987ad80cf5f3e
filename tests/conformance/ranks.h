// SPDX-License-Identifier: Apache-2.0
// A problem's rows, dispatched to ranks that hold some of the experts and summed again in order.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/conformance/judge.h"

namespace sluice::conformance {

inline constexpr float kUnwritten = -12345;

/// What one rank holds: global expert ids, in the order of its weights.
using Rank = std::vector<std::int32_t>;

/// The layer on one rank.
Layer layer_of(const Backend& backend, const Problem& problem, const LayerWeights& weights, const Rank& rank);

/// Rows of one rank in one layout, with NaN where nobody may read and kUnwritten where nobody may write.
struct Dispatch {
  Rank rank;
  std::vector<float> hidden, output, weights;
  std::vector<std::int32_t> offsets, counts;
  int max_tokens = 0;
  std::vector<std::int32_t> adapter_ids;
  std::vector<std::int32_t> slots;  // of each row, -1 for none
};

/// The local expert that takes a slot, -1 for none of this rank's.
using Mine = std::function<int(std::int32_t slot)>;
/// `latent`: [tokens, latent], the rows of latent experts.
Dispatch dispatch(const Problem& problem, const Rank& rank, bool batched, const Mine& mine,
                  const std::vector<float>& latent = {});
void run(const Layer& layer, const Problem& problem, Dispatch& rows, int at_once);

/// All ranks in one layout, then the ordered sum, between the projections of latent experts. Where several
/// ranks hold an expert they take turns.
std::vector<float> over_ranks(const Backend& backend, const Problem& problem, const LayerWeights& weights,
                              const std::vector<Rank>& ranks, bool batched, int at_once);

/// The flat call's bits; of the definition, which sums a token in double and rounds once where the ordered
/// sum rounds every term, the definition within roundings; and so of a backend that is not batch invariant,
/// as ranks that share an expert share its tokens.
::testing::AssertionResult is_right(const Backend& backend, const Problem& problem,
                                    const std::vector<float>& flat, const std::vector<float>& got);

}  // namespace sluice::conformance
