// SPDX-License-Identifier: Apache-2.0
// The tiles of AMX: eight registers of 16 rows of 64 bytes. In assembler, since the intrinsics of g++ 12 let
// the compiler move stores past the loads of tiles. Only the kernels.cpp of a backend with these instructions
// includes this; everything is in an anonymous namespace (kernel.h says why).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cpu {
namespace {

/// A product of up to 32 tokens and 32 rows of weights, 16 pairs of columns at a time:
///
///   tile   0 1  sums of the first tokens, blocks 0 and 1       4  their inputs     6  weights of block 0
///          2 3  sums of the others                             5  theirs           7  of block 1
struct Tiles {
  /// Numbers of tokens, at least 1 each. Until `release` the thread's tile registers are in use.
  static void configure(int first, int others) {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16];
    };
    const auto a = static_cast<std::uint8_t>(first), b = static_cast<std::uint8_t>(others);
    const Config config{.rows = {a, a, b, b, a, b, 16, 16}};
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  static void release() { asm volatile("tilerelease"); }

  template <int kTile>
  [[gnu::always_inline]] static inline void zero() {
    asm volatile("tilezero %%tmm%c0" : : "n"(kTile));
  }
  /// `stride` bytes from one row to the next.
  template <int kTile>
  [[gnu::always_inline]] static inline void load(const void* at, std::size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(at), "r"(stride), "n"(kTile) : "memory");
  }
  template <int kTile>
  [[gnu::always_inline]] static inline void store(void* at, std::size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(at), "r"(stride), "n"(kTile) : "memory");
  }
  /// Adds to each sum the products of 16 pairs: those of first columns and those of second ones are summed
  /// apart, in ascending order, then added. Subnormal numbers are 0, before and after.
  template <int kSums, int kInputs, int kWeights>
  [[gnu::always_inline]] static inline void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSums), "n"(kInputs), "n"(kWeights));
  }
};

}  // namespace
}  // namespace sluice::cpu
