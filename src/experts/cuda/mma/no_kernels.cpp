// SPDX-License-Identifier: Apache-2.0
// Stands in for everything that needs CUDA in a build without it.
#include "experts/cuda/mma/table.h"

namespace sluice::cuda {

const MmaTable* const kMmaTable = nullptr;

}  // namespace sluice::cuda
