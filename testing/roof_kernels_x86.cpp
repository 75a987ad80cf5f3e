// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "core/devices.h"
#include "testing/roof_kernels.h"

namespace sluice::testing {
namespace {

// Twelve chains: two multiply-adds a cycle, each four cycles long, need eight; the registers hold sixteen.
constexpr int kChains = 12;
// Dot products take up to six cycles, two a cycle on Zen 5; AVX-512 has 32 registers.
constexpr int kDotChains = 16;

// Reads walk four streams at once, a quarter of the range apart. One core of an EPYC of the third generation
// (2026-11, huge pages, best of 170 windows of 4 MB) reads 24 GB/s in one stream, 30 in two to eight, and 19
// with software prefetch.
constexpr std::size_t kStreams = 4;

__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::byte* data, std::size_t bytes) {
  const std::size_t quarter = bytes / kStreams;
  __m256i sums[kStreams] = {};
  for (std::size_t i = 0; i < quarter; i += 64)
    for (std::size_t s = 0; s < kStreams; ++s) {
      const auto* at = reinterpret_cast<const __m256i*>(data + s * quarter + i);
      sums[s] =
          _mm256_xor_si256(sums[s], _mm256_xor_si256(_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)));
    }
  const __m256i sum =
      _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  alignas(32) std::uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sum);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

__attribute__((target("avx512f"))) std::uint64_t read_avx512(const std::byte* data, std::size_t bytes) {
  const std::size_t quarter = bytes / kStreams;
  __m512i sums[kStreams] = {};
  for (std::size_t i = 0; i < quarter; i += 64)
    for (std::size_t s = 0; s < kStreams; ++s)
      sums[s] = _mm512_xor_si512(sums[s], _mm512_loadu_si512(data + s * quarter + i));
  const __m512i sum =
      _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
  alignas(64) std::uint64_t words[8];
  _mm512_store_si512(words, sum);
  std::uint64_t all = 0;
  for (const std::uint64_t word : words) all ^= word;
  return all;
}

__attribute__((target("avx2,fma"))) float multiply_add_avx2(int rounds) {
  const __m256 factor = _mm256_set1_ps(0.999f), addend = _mm256_set1_ps(0.001f);
  __m256 chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = _mm256_set1_ps(static_cast<float>(c));
  for (int r = 0; r < rounds; ++r)
    for (int c = 0; c < kChains; ++c) chains[c] = _mm256_fmadd_ps(chains[c], factor, addend);
  for (int c = 1; c < kChains; ++c) chains[0] = _mm256_add_ps(chains[0], chains[c]);
  return _mm256_cvtss_f32(chains[0]);
}

__attribute__((target("avx512f"))) float multiply_add_avx512(int rounds) {
  const __m512 factor = _mm512_set1_ps(0.999f), addend = _mm512_set1_ps(0.001f);
  __m512 chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = _mm512_set1_ps(static_cast<float>(c));
  for (int r = 0; r < rounds; ++r)
    for (int c = 0; c < kChains; ++c) chains[c] = _mm512_fmadd_ps(chains[c], factor, addend);
  for (int c = 1; c < kChains; ++c) chains[0] = _mm512_add_ps(chains[0], chains[c]);
  return _mm512_cvtss_f32(chains[0]);
}

/// Four-byte pairs of bf16, 1 and 2^-10: sums grow by 2^-9 a round and stay far from infinity.
__attribute__((target("avx512f,avx512bf16"))) float multiply_add_bf16(int rounds) {
  const auto one = (__m512bh)_mm512_set1_epi32(0x3F803F80), small = (__m512bh)_mm512_set1_epi32(0x3A803A80);
  __m512 chains[kDotChains];
  for (int c = 0; c < kDotChains; ++c) chains[c] = _mm512_set1_ps(static_cast<float>(c));
  for (int r = 0; r < rounds; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < kDotChains; ++c) chains[c] = _mm512_dpbf16_ps(chains[c], one, small);
  for (int c = 1; c < kDotChains; ++c) chains[0] = _mm512_add_ps(chains[0], chains[c]);
  return _mm512_cvtss_f32(chains[0]);
}

/// Four products of bytes a lane. The chains are names and not an array: of an array g++ 12 makes two copies
/// of registers a product, which take longer than the products.
__attribute__((target("avx512f,avx512vnni"))) float multiply_add_int8(int rounds) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i a = ones, b = ones, c = ones, d = ones, e = ones, f = ones, g = ones, h = ones;
  __m512i i = ones, j = ones, k = ones, l = ones, m = ones, n = ones, o = ones, p = ones;
  const auto add = [&](__m512i & chain) __attribute__((always_inline, target("avx512f,avx512vnni"))) {
    asm("vpdpbusd %1, %1, %0" : "+v"(chain) : "v"(ones));
  };
  for (int r = 0; r < rounds; ++r) {
    add(a), add(b), add(c), add(d), add(e), add(f), add(g), add(h);
    add(i), add(j), add(k), add(l), add(m), add(n), add(o), add(p);
  }
  __m512i sum = a;
  for (const __m512i& chain : {b, c, d, e, f, g, h, i, j, k, l, m, n, o, p})
    sum = _mm512_add_epi32(sum, chain);
  return static_cast<float>(_mm512_cvtsi512_si32(sum));
}

// SSE2, which every x86-64 has.
std::uint64_t read_sse2(const std::byte* data, std::size_t bytes) {
  const std::size_t quarter = bytes / kStreams;
  __m128i sums[kStreams] = {};
  for (std::size_t i = 0; i < quarter; i += 16)
    for (std::size_t s = 0; s < kStreams; ++s)
      sums[s] =
          _mm_xor_si128(sums[s], _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + s * quarter + i)));
  const __m128i sum = _mm_xor_si128(_mm_xor_si128(sums[0], sums[1]), _mm_xor_si128(sums[2], sums[3]));
  alignas(16) std::uint64_t words[2];
  _mm_store_si128(reinterpret_cast<__m128i*>(words), sum);
  return words[0] ^ words[1];
}

float multiply_add_sse2(int rounds) {
  const __m128 factor = _mm_set1_ps(0.999f), addend = _mm_set1_ps(0.001f);
  __m128 chains[kChains];
  for (int c = 0; c < kChains; ++c) chains[c] = _mm_set1_ps(static_cast<float>(c));
  for (int r = 0; r < rounds; ++r)
    for (int c = 0; c < kChains; ++c) chains[c] = _mm_add_ps(_mm_mul_ps(chains[c], factor), addend);
  for (int c = 1; c < kChains; ++c) chains[0] = _mm_add_ps(chains[0], chains[c]);
  return _mm_cvtss_f32(chains[0]);
}

Arithmetic f32(MultiplyAdd run, int lanes) {
  return {.name = "f32_fma", .run = run, .lanes = lanes * kChains, .exact = true};
}

}  // namespace

RoofKernels roof_kernels(const Instructions& has) {
  using namespace instruction;
  if (!has.has(InstructionList::of<Avx512f>())) {
    if (has.has(InstructionList::of<Avx2>()) && has.has(InstructionList::of<Fma>()))
      return {read_avx2, {f32(multiply_add_avx2, 8)}};
    return {read_sse2, {f32(multiply_add_sse2, 4)}};
  }
  RoofKernels kernels{read_avx512, {f32(multiply_add_avx512, 16)}};
  if (has.has(InstructionList::of<Avx512bf16>()))
    kernels.arithmetic.push_back(
        {.name = "bf16_dot", .run = multiply_add_bf16, .lanes = 32 * kDotChains, .exact = true});
  if (has.has(InstructionList::of<Avx512vnni>()))
    kernels.arithmetic.push_back(
        {.name = "int8_dot", .run = multiply_add_int8, .lanes = 64 * kDotChains, .exact = false});
  return kernels;
}

}  // namespace sluice::testing
