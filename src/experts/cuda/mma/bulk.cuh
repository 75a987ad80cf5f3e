// SPDX-License-Identifier: Apache-2.0
// Bulk copies of SM90, of which one lane moves kilobytes, barriers in shared memory, and counters that the
// whole card sees.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sluice::cuda {

__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// A phase of the barrier ends with so many arrivals.
__device__ inline void init_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// What this thread did before is seen by whoever waits for the phase.
__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void prefetch(const void* from) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(from) : "memory");
}

/// Barriers that were made here may be used by copies.
__device__ inline void show_to_copies() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// What this thread sees in the card's memory is seen by the copies that it starts.
__device__ inline void show_writes_to_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Copies `bytes`, a multiple of 16, and lets the barrier's phase end when they are there.
__device__ inline void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes,
                                 std::uint32_t barrier) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Waits for the end of the phase of this parity.
__device__ inline void wait_for(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Whether the phase of this parity has ended.
__device__ inline bool has_ended(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// Counts what this warp wrote before, which whoever waits for the count sees.
__device__ inline void count_up(std::uint32_t* counter) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/// One thread of a block asks: thousands that ask for one line hold each other up.
__device__ inline void wait_until(const std::uint32_t* counter, int count) {
  std::uint32_t seen = 0;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  while (seen < static_cast<std::uint32_t>(count));
}

}  // namespace sluice::cuda
