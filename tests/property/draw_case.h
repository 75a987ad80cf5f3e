// SPDX-License-Identifier: Apache-2.0
// Layers and calls that nobody thought of: drawn from all that a backend declares.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/judge.h"
#include "tests/conformance/ranks.h"

namespace sluice::property {

enum class Layout : std::uint8_t { flat, contiguous, batched };

/// One draw. Its seed alone makes it again.
struct DrawnCase {
  conformance::Case layer;
  testing::Numbers numbers = testing::Numbers::noisy;
  testing::CallShape call = {};
  Layout layout = Layout::flat;
  std::vector<conformance::Rank> ranks = {};  // every expert on one or two of them; a rank may be idle
  int threads = 1;
  int tokens_at_once = 0;  // room in the workspace; 0: for all
  double dropped = 0;      // the share of slots with the id -1

  std::string str() const;
};

/// `can` must have at least one format and activation. Sizes are what the format and the backend allow,
/// otherwise anything: 1 to 200 experts, top_k to 32, rows of up to some 700 columns.
DrawnCase draw_case(const Capability& can, std::uint64_t seed);

}  // namespace sluice::property
