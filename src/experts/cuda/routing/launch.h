// SPDX-License-Identifier: Apache-2.0
// Starts a kernel of one argument, after everything before it in the stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace sluice::cuda {

template <class Argument>
cudaError_t launch(void (*kernel)(Argument), const Argument& argument, dim3 grid, dim3 block,
                   cudaStream_t stream, std::size_t shared = 0) {
  void* arguments[] = {const_cast<Argument*>(&argument)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared, stream);
}

}  // namespace sluice::cuda
