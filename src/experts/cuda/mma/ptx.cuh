// SPDX-License-Identifier: Apache-2.0
// Instructions by name.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <nv/target>

namespace sluice::cuda {

/// Global to shared memory, 16 bytes, beside what else the thread does.
__device__ inline void copy_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// Zeros where `there` is false.
__device__ inline void copy_async(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// 16 bytes of the card's memory, or zeros.
__device__ inline uint4 load_or_zeros(const std::byte* from, bool there) {
  uint4 v;
  asm volatile(
      "{.reg .pred there; setp.ne.b32 there, %5, 0;\n"
      "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
      "@there ld.global.v4.u32 {%0,%1,%2,%3}, [%4];}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"(static_cast<int>(there))
      : "memory");
  return v;
}

/// An address in shared memory that is known as one: 32 bits, of which the compiler need not find out, again
/// and again, where in all memory they are.
struct SharedBytes {
  std::uint32_t at;
  __device__ SharedBytes operator+(int bytes) const { return {at + static_cast<std::uint32_t>(bytes)}; }
};

/// The same number, of which the compiler does not know how to make it anew.
__device__ inline std::uint32_t hold(std::uint32_t number) {
  asm volatile("" : "+r"(number));
  return number;
}

/// Element `index` of those of a type at some place.
template <class T>
__device__ T read(const std::byte* from, int index) {
  return reinterpret_cast<const T*>(from)[index];
}
template <class T>
__device__ T read(SharedBytes from, int index) {
  const std::uint32_t at = from.at + static_cast<std::uint32_t>(index) * sizeof(T);
  std::uint32_t words[(sizeof(T) + 3) / 4];
  if constexpr (sizeof(T) == 2) {
    std::uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(at) : "memory");
    words[0] = half;
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[0]) : "r"(at) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(at) : "memory");
  } else {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
  }
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

/// Past L1, which may hold what an earlier call had there.
__device__ inline std::int32_t load_fresh(const std::int32_t* from) { return __ldcg(from); }

/// The local expert a global id stands for, or -1, as sluice::local_expert says it; `map` is [experts], or
/// null for the same.
__device__ inline int local_expert(int id, const std::int32_t* map, int experts, int local_experts) {
  if (id < 0 || id >= experts) return -1;
  const int local = map == nullptr ? id : map[id];
  return local < 0 || local >= local_experts ? -1 : local;
}

/// What the kernels before this one wrote may be read from here on. Kernels of SM90 are started before that.
__device__ inline void wait_for_earlier() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.wait;" ::: "memory");))
}
/// The kernel after this one may be started. Called after wait_for_earlier, so that whoever runs knows that
/// all but the one before it have ended.
__device__ inline void start_later() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.launch_dependents;" ::: "memory");))
}

/// Both halves; the products that this is used for are exact.
__device__ inline std::uint32_t times(std::uint32_t value, std::uint32_t multiplier) {
  std::uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(value), "r"(multiplier), "r"(0x80008000u));
  return result;
}

/// value * multiplier + addend in both halves, rounded once.
__device__ inline std::uint32_t times_plus(std::uint32_t value, std::uint32_t multiplier,
                                           std::uint32_t addend) {
  std::uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(value), "r"(multiplier), "r"(addend));
  return result;
}

/// sums + a b
__device__ inline void mma(float (&sums)[4], const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace sluice::cuda
