// SPDX-License-Identifier: Apache-2.0
// The border between what is declared, in every build, and the code that needs CUDA.
#pragma once

#include <cstddef>
#include <memory>

#include "experts/backend.h"

namespace sluice::cuda {

struct MmaTable {
  std::unique_ptr<PackedExperts> (*pack)(const Backend&, const PackInput&);
  std::size_t (*workspace_bytes)(const PackedExperts&, int tokens, int workers);
  void (*run)(const PackedExperts&, const Forward&);
  std::unique_ptr<DeviceLayer> (*on_device)(const DeviceLayerInput&);
};

/// Null in a build without CUDA.
extern const MmaTable* const kMmaTable;

}  // namespace sluice::cuda
