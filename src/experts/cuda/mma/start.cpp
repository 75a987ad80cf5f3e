// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/start.h"

#include <algorithm>

namespace sluice::cuda {

namespace {

/// With one attribute, or none.
cudaError_t launch(const void* function, const void* argument, dim3 grid, const BlockShape& block,
                   cudaStream_t stream, cudaLaunchAttribute* attribute) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(block.threads));
  config.dynamicSmemBytes = block.shared;
  config.stream = stream;
  config.attrs = attribute;
  config.numAttrs = attribute == nullptr ? 0 : 1;
  void* arguments[] = {const_cast<void*>(argument)};
  return cudaLaunchKernelExC(&config, function, arguments);
}

/// Lets a function have the shared memory that it asks for, and makes its grid as large as the card holds.
cudaError_t whole_card(const void* function, const BlockShape& block, dim3& grid) {
  // The limit is the function's, and other threads set it too: to what one block can have.
  int device = 0, most = 0, processors = 0, blocks = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaFuncAttributes attributes{};
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, function);
  const int dynamic = most - static_cast<int>(attributes.sharedSizeBytes);
  if (error == cudaSuccess && attributes.maxDynamicSharedSizeBytes != dynamic)
    error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, block.threads, block.shared);
  grid = dim3(static_cast<unsigned>(std::max(blocks, 1) * processors));
  return error;
}

}  // namespace

cudaError_t start_grid(const void* function, const void* argument, dim3 grid, const BlockShape& block,
                       cudaStream_t stream, After after) {
  cudaFuncAttributes attributes{};
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, function); error != cudaSuccess)
    return error;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  // Code from PTX for SM80 does not wait, whatever card it runs on.
  const bool waits = after == After::ours && attributes.ptxVersion >= 90;
  return launch(function, argument, grid, block, stream, waits ? &early : nullptr);
}

cudaError_t start_everywhere(const void* function, const void* argument, const BlockShape& block,
                             cudaStream_t stream) {
  dim3 grid;
  if (const cudaError_t error = whole_card(function, block, grid); error != cudaSuccess) return error;
  return start_grid(function, argument, grid, block, stream, After::ours);
}

cudaError_t start_together(const void* function, const void* argument, const BlockShape& block,
                           cudaStream_t stream) {
  dim3 grid;
  if (const cudaError_t error = whole_card(function, block, grid); error != cudaSuccess) return error;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  return launch(function, argument, grid, block, stream, &together);
}

}  // namespace sluice::cuda
