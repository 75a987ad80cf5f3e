// SPDX-License-Identifier: Apache-2.0
// Adapters' matrices from the processor to the card, one behind another.
#pragma once

#include <cstddef>

#include "experts/cuda/mma/lora.h"
#include "experts/cuda/mma/places.h"
#include "sluice/lora.h"

namespace sluice::cuda {

/// A matrix with neither rows nor columns dense is made dense in `dense`, which has room for any.
struct LoraCopy {
  Places& places;
  cudaStream_t stream;
  std::byte* dense;
};
std::size_t dense_bytes(const ExpertsSpec& spec);

/// Places that a copy takes.
void count(const LoraExpert& expert, Places& places);
/// Starts the copies. The views must stay until the stream has come past them.
CardLoraExpert copy(const LoraExpert& expert, const LoraCopy& to);

}  // namespace sluice::cuda
