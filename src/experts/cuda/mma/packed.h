// SPDX-License-Identifier: Apache-2.0
// Weights in the card's memory.
#pragma once

#include <memory>

#include "experts/backend.h"
#include "experts/cuda/common/layout.h"
#include "experts/cuda/mma/runtime.h"

namespace sluice::cuda {

class Packed : public PackedExperts {
 public:
  Packed(const Backend& packed_by, const ExpertsSpec& packed_spec, const ExpertLayout& packed_as,
         DeviceMemory weights);
  ~Packed() override;
  std::int64_t bytes() const override { return layout.bytes * spec.local_experts; }

  int device() const { return memory.get_deleter().device; }

  const ExpertLayout layout;
  const bool one_launch;  // calls of few tokens take one launch, where there is code for that
  const bool warpgroups;  // there is code for warpgroups in this build, for this card
  const int
      mid_terms;  // bf16 that an intermediate is the sum of: what holds it, or one that it is rounded to
  DeviceMemory memory;    // [local_experts, layout.bytes]
  DeviceMemory counters;  // DecodeCounters [kDecodeKernels]; none without one_launch
};

/// Repacks on the processor, one expert at a time, and copies.
std::unique_ptr<PackedExperts> pack(const Backend& backend, const PackInput& input);

}  // namespace sluice::cuda
