// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime as this library meets it: errors are thrown, memory has an owner.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

namespace sluice::cuda {

/// Throws out_of_memory or device, saying what was being done, unless the call went well.
void check(cudaError_t error, const char* doing);

/// Makes a card current in this thread, and the caller's again at the end. Choosing a card makes the runtime
/// set it up, so nothing is chosen that is current already.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct FreeDevice {
  int device = 0;  // whose memory it is
  void operator()(std::byte* memory) const;
};
using DeviceMemory = std::unique_ptr<std::byte, FreeDevice>;

/// Of the current card. Throws out_of_memory, with what is free.
DeviceMemory allocate(std::size_t bytes);

/// Memory of the current card for the time of a call, in the order of a stream. It comes from a pool of this
/// library's own that keeps what it once had, so that a call asks the driver for nothing that an earlier one
/// had.
class CallMemory {
 public:
  CallMemory(std::size_t bytes, cudaStream_t stream);
  ~CallMemory();
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace sluice::cuda
