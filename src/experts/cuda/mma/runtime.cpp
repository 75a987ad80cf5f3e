// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/runtime.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

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

cudaMemPool_t make_pool() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = kDevice;
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "making a memory pool");
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "setting up a memory pool");
  return pool;
}

/// For the life of the process: calls may run until its end.
cudaMemPool_t pool() {
  static cudaMemPool_t const made = make_pool();
  return made;
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

DeviceScope::DeviceScope() {
  check(cudaGetDevice(&before_), "asking for the device");
  check(cudaSetDevice(kDevice), "choosing the device");
}

DeviceScope::~DeviceScope() { cudaSetDevice(before_); }

DeviceMemory allocate(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) fail_memory(bytes);
  check(error, "allocating memory");
  return DeviceMemory(static_cast<std::byte*>(memory));
}

CallMemory::CallMemory(std::size_t bytes, cudaStream_t stream) : stream_(stream) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocFromPoolAsync(&memory, bytes, pool(), stream);
  if (error == cudaErrorMemoryAllocation) fail_memory(bytes);
  check(error, "allocating memory for a call");
  data_ = static_cast<std::byte*>(memory);
}

CallMemory::~CallMemory() {
  cudaStreamSynchronize(stream_);  // after an error copies of the caller's memory may still be under way
  cudaFreeAsync(data_, stream_);
}

}  // namespace sluice::cuda
