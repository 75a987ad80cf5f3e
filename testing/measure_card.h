// SPDX-License-Identifier: Apache-2.0
// Timing on a card: all of a layer, through the public calls on a card's tensors, replayed from a CUDA graph.
//
// Weights come from memory: a graph holds several calls, each has a routing of its own, and the layers that
// take turns are together many times the L2 cache. Small layers (of a test model) may still fit it, as no
// more than kMostLayers are packed; the result says how many there are.
#pragma once

#include "testing/measure.h"

namespace sluice::testing {

/// bench_layer on a card of this machine.
std::vector<BenchResult> bench_card(const BenchRequest& request, const DeviceFacts& device,
                                    LayerWeights weights,
                                    const std::function<void(const BenchResult&)>& each);

/// What a card does at most, and how that is known.
struct CardRoof {
  double read_gbps, gflops;
  std::string_view arithmetic, from;
};
/// An H200's was measured with kernels made for that; of other cards it is what was read with in this run,
/// and the peak that follows from their clocks.
CardRoof card_roof(const DeviceFacts& device, const Ceilings& measured);

/// Sets floors and shares from bytes, flops, times and ceilings.
void set_card_floors(BenchResult& result, const CardRoof& roof);

}  // namespace sluice::testing
