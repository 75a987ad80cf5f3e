// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/runtime.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>

#include "core/error.h"

namespace sluice::cuda {
namespace {

double gigabytes(std::size_t bytes) { return static_cast<double>(bytes) * 1e-9; }

[[noreturn]] void fail_memory(std::size_t bytes) {
  std::size_t free = 0, all = 0;
  cudaMemGetInfo(&free, &all);
  cudaGetLastError();  // so that the next call does not report this once more
  fail(ErrorKind::out_of_memory,
       {.code = "does_not_fit",
        .what = fmt::format("the card refused {:.3f} GB, {:.3f} of {:.1f} GB are free", gigabytes(bytes),
                            gigabytes(free), gigabytes(all)),
        .todo = "Free memory of the card, keep fewer experts here with an expert map, or give fewer tokens "
                "at a time"});
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  return device;
}

cudaMemPool_t make_pool(int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "making a memory pool");
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "setting up a memory pool");
  return pool;
}

/// One a card, for the life of the process: calls may run until its end.
cudaMemPool_t pool(int device) {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> made;
  const std::lock_guard lock(mutex);
  const auto found = made.find(device);
  return found != made.end() ? found->second : made.emplace(device, make_pool(device)).first->second;
}

}  // namespace

void check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation;
  fail(memory ? ErrorKind::out_of_memory : ErrorKind::device,
       {.code = memory ? "does_not_fit" : "cuda_error",
        .what = fmt::format("{} failed on the card", doing),
        .why = fmt::format("{}: {}", cudaGetErrorName(error), cudaGetErrorString(error)),
        .todo = memory
                    ? "Free memory of the card, or give fewer tokens at a time"
                    : "See whether nvidia-smi shows the card, and whether its driver is as new as CUDA 13"});
}

DeviceScope::DeviceScope(int device) : before_(current_device()) {
  if (before_ == device) return;
  check(cudaSetDevice(device), "choosing the device");
  changed_ = true;
}

DeviceScope::~DeviceScope() {
  if (changed_) cudaSetDevice(before_);
}

void FreeDevice::operator()(std::byte* memory) const {
  int before = device;
  cudaGetDevice(&before);
  if (before != device) cudaSetDevice(device);
  cudaFree(memory);
  if (before != device) cudaSetDevice(before);
}

DeviceMemory allocate(std::size_t bytes) {
  void* memory = nullptr;
  const int device = current_device();
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) fail_memory(bytes);
  check(error, "allocating memory");
  return DeviceMemory(static_cast<std::byte*>(memory), FreeDevice{device});
}

CallMemory::CallMemory(std::size_t bytes, cudaStream_t stream) : stream_(stream) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocFromPoolAsync(&memory, bytes, pool(current_device()), stream);
  if (error == cudaErrorMemoryAllocation) fail_memory(bytes);
  check(error, "allocating memory for a call");
  data_ = static_cast<std::byte*>(memory);
}

CallMemory::~CallMemory() {
  cudaStreamSynchronize(stream_);  // after an error copies of the caller's memory may still be under way
  cudaFreeAsync(data_, stream_);
}

}  // namespace sluice::cuda
