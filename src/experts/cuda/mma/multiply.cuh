// SPDX-License-Identifier: Apache-2.0
// The product: one strip of weights a warp, four warps a block, the tokens of one tile. Weights and inputs
// come through a ring in shared memory by cp.async; weights are unpacked to bf16 in registers and are the 16
// rows of mma.m16n8k16, tokens its 8 columns.
//
// Every 16 columns are summed by themselves and then added to the whole in float32, with the block's scale
// where it has one. Nothing about a sum depends on the tile's width, the other tokens or the number of
// blocks, so a token gets the same bits in any batch.
#pragma once

#include <cuda_runtime.h>

#include "activation/activation.h"
#include "experts/cuda/common/unpack.h"
#include "experts/cuda/mma/multiply.h"

namespace sluice::cuda {

inline constexpr int kWarps = 4, kThreads = kWarps * kLanes;
/// A row's 128 columns of one term.
inline constexpr int kRowBytes = 2 * kBlockColumns;

/// Stages of the ring: what fits the 99 KB that a block may have on SM86 and SM89 (of which row addresses
/// take up to 512 bytes), for as many terms as its tiles may have.
constexpr int ring_stages(Storage storage, int width) {
  const int inputs = tile_tokens(width) * most_terms(width) * kRowBytes;
  const int fits = 98 * 1024 / (kWarps * block_bytes(storage) + inputs);
  return fits < 2 ? 2 : fits > 6 ? 6 : fits;
}

__device__ inline void copy_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Both halves; the products that this is used for are exact.
__device__ inline std::uint32_t times(std::uint32_t value, std::uint32_t multiplier) {
  std::uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(value), "r"(multiplier), "r"(0x80008000u));
  return result;
}

/// sums + a b
__device__ inline void mma(float (&sums)[4], const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// What a lane multiplies a block's values by, [row g or g + 8][columns 0 to 15 or 16 to 31 of its 32].
struct Multipliers {
  std::uint32_t of[2][2];
};

template <Storage kStorage>
__device__ Multipliers multipliers_of(const std::byte* scales, int lane) {
  Multipliers m;
  if constexpr (kStorage == Storage::fp4_e4m3) {
    const std::uint32_t bytes = reinterpret_cast<const std::uint32_t*>(scales)[lane];
    for (int i = 0; i < 4; ++i) m.of[i / 2][i % 2] = e4m3_multiplier(bytes >> (8 * i) & 0xFFu);
  } else if constexpr (kStorage == Storage::fp4_e8m0 || kStorage == Storage::fp8_e8m0) {
    const std::uint32_t bytes = reinterpret_cast<const std::uint16_t*>(scales)[lane];
    for (int half = 0; half < 2; ++half)
      m.of[half][0] = m.of[half][1] = e8m0_multiplier(bytes >> (8 * half) & 0xFFu);
  } else {
    for (int i = 0; i < 4; ++i) m.of[i / 2][i % 2] = kFp8Unscaled;
  }
  return m;
}

/// Weights of two steps: registers a0 to a3 of the one, then of the other. F16 has a second term.
template <Storage kStorage>
struct Fragment {
  static constexpr int kTerms = kStorage == Storage::f16 ? 2 : 1;
  std::uint32_t of[kTerms][8];
};

template <Storage kStorage>
__device__ Fragment<kStorage> fragment(const std::byte* values, int lane, int pair, const Multipliers& m) {
  Fragment<kStorage> a;
  constexpr int kBits = value_bits(kStorage);
  if constexpr (kBits == 4) {
    const uint2 words = *reinterpret_cast<const uint2*>(values + pair / 2 * 512 + lane * 16 + pair % 2 * 8);
    unpack_fp4(words.x, words.y, a.of[0]);
  } else if constexpr (kBits == 8) {
    const uint4 words = *reinterpret_cast<const uint4*>(values + pair * 512 + lane * 16);
    const std::uint32_t of[] = {words.x, words.y, words.z, words.w};
    for (int i = 0; i < 8; ++i) a.of[0][i] = unpack_fp8(of[i / 2] >> (16 * (i % 2)));
  } else {
    for (int step = 0; step < 2; ++step) {
      const uint4 words = *reinterpret_cast<const uint4*>(values + (2 * pair + step) * 512 + lane * 16);
      const std::uint32_t of[] = {words.x, words.y, words.z, words.w};
      for (int i = 0; i < 4; ++i) {
        if constexpr (kStorage == Storage::f16)
          split_f16(of[i], a.of[0][4 * step + i], a.of[1][4 * step + i]);
        else
          a.of[0][4 * step + i] = of[i];
      }
    }
  }
  if constexpr (kBits < 16)
    for (int i = 0; i < 8; ++i) a.of[0][i] = times(a.of[0][i], m.of[i % 2][pair / 2]);
  return a;
}

/// Where the 16 bytes of columns 8 c to 8 c + 7 of a token lie in its row: those of one instruction in one
/// line, and neighbouring tokens' in the other banks.
__device__ inline int place_of(int token, int c) { return (((c & 3) << 2 | c >> 2) ^ (token & 1) << 2) * 16; }

/// A thread block's view of its work.
struct Place {
  Tile tile;
  int strip, warp, lane;
  bool active;  // the warp has a strip
};

template <Storage kStorage, int kWidth>
struct Ring {
  static constexpr int kTokens = tile_tokens(kWidth), kStages = ring_stages(kStorage, kWidth);
  static constexpr int kBlock = block_bytes(kStorage);

  static constexpr int input_bytes(int terms) { return kTokens * terms * kRowBytes; }
  static constexpr int stage_bytes(int terms) { return kWarps * kBlock + input_bytes(terms); }

  /// Starts the copies of one block of columns.
  static __device__ void fetch(const Product& p, const Place& at, const std::byte* strip,
                               const std::uint16_t* const (&rows)[kTokens], int k_block, std::byte* stage) {
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(stage));
    if (at.active) {
      const std::byte* block = strip + std::int64_t{k_block} * kBlock;
      for (int piece = at.lane; piece < kBlock / 16; piece += kLanes)
        copy_async(to + at.warp * kBlock + piece * 16, block + piece * 16);
    }
    for (int piece = threadIdx.x; piece < kTokens * p.input.terms * 16; piece += kThreads) {
      const int c = piece % 16, token = piece / 16 % kTokens, term = piece / 16 / kTokens;
      const std::uint16_t* from = rows[token] + term * p.input.plane + k_block * kBlockColumns + c * 8;
      copy_async(to + kWarps * kBlock + (term * kTokens + token) * kRowBytes + place_of(token, c), from);
    }
  }
};

/// The sums of a lane. A tensor core cuts what it adds to the exponent of the largest, the sum so far
/// included, so nothing large is ever added there: every product of first terms starts from zero, where its
/// 16 summands keep their bits, and is added to `first` in float32. What other terms add is 2^-7 times that,
/// and stays apart.
template <Storage kStorage, int kWidth>
struct Sums {
  static constexpr int kTiles = 1 << kWidth;
  /// The widest tiles have one term, and weights of one term.
  static constexpr bool kRest = kWidth < 3 || kStorage == Storage::f16;
  float first[kTiles][4] = {};
  float rest[kRest ? kTiles : 1][4] = {};
};

/// first += scale (a b)
__device__ inline void multiply_add(float (&first)[4], const std::uint32_t* a, std::uint32_t b0,
                                    std::uint32_t b1, float2 scale) {
  float sums[4] = {};
  mma(sums, a, b0, b1);
  first[0] = __fmaf_rn(scale.x, sums[0], first[0]);
  first[1] = __fmaf_rn(scale.x, sums[1], first[1]);
  first[2] = __fmaf_rn(scale.y, sums[2], first[2]);
  first[3] = __fmaf_rn(scale.y, sums[3], first[3]);
}

/// A block's scales of rows g and g + 8; ones where it has none.
template <Storage kStorage>
__device__ float2 scales_of(const std::byte* block) {
  if constexpr (kStorage == Storage::fp8_scaled)
    return *reinterpret_cast<const float2*>(block + value_bytes(kStorage));
  else
    return {1, 1};
}

/// The products of one pair of steps and one term of the inputs.
template <Storage kStorage, int kWidth>
__device__ void multiply_term(const Fragment<kStorage>& a, const std::byte* input, int place, int term,
                              float2 scale, Sums<kStorage, kWidth>& sums, float (&rest)[1 << kWidth][4]) {
#pragma unroll
  for (int n = 0; n < 1 << kWidth; ++n) {
    const uint4 b = *reinterpret_cast<const uint4*>(input + 8 * n * kRowBytes + place);
    if (term == 0) {
      multiply_add(sums.first[n], a.of[0], b.x, b.y, scale);
      multiply_add(sums.first[n], a.of[0] + 4, b.z, b.w, scale);
    } else {
      mma(rest[n], a.of[0], b.x, b.y);
      mma(rest[n], a.of[0] + 4, b.z, b.w);
    }
    if constexpr (Fragment<kStorage>::kTerms == 2) {
      // An infinite weight's second term is zero: an infinite input must not meet it.
      mma(rest[n], a.of[1], only_finite(b.x), only_finite(b.y));
      mma(rest[n], a.of[1] + 4, only_finite(b.z), only_finite(b.w));
    }
  }
}

/// One block of columns times all tokens of the tile.
template <Storage kStorage, int kWidth>
__device__ void multiply_block(const std::byte* stage, const Place& at, int terms,
                               Sums<kStorage, kWidth>& sums) {
  using R = Ring<kStorage, kWidth>;
  const std::byte* values = stage + at.warp * R::kBlock;
  const Multipliers m = multipliers_of<kStorage>(values + value_bytes(kStorage), at.lane);
  const float2 scale = scales_of<kStorage>(values);
  const int g = at.lane / 4, t = at.lane % 4;
  const std::byte* input = stage + kWarps * R::kBlock + g * kRowBytes;
  float rest[1 << kWidth][4] = {};
#pragma unroll
  for (int pair = 0; pair < kSteps / 2; ++pair) {
    Fragment<kStorage> a = fragment<kStorage>(values, at.lane, pair, m);
    const int place = place_of(g, 4 * t + pair);
    multiply_term(a, input, place, 0, scale, sums, rest);
    if constexpr (kWidth < 3) {
      if (terms == 1) continue;
      // Later terms of an infinite input are zeros, and must not meet an infinite weight.
      if constexpr (value_bits(kStorage) == 16)
        for (auto& term : a.of)
          for (std::uint32_t& pair_of_weights : term) pair_of_weights = only_finite(pair_of_weights);
      for (int term = 1; term < terms; ++term)
        multiply_term(a, input + term * R::kTokens * kRowBytes, place, term, scale, sums, rest);
    }
  }
  if constexpr (Sums<kStorage, kWidth>::kRest)
#pragma unroll
    for (int n = 0; n < 1 << kWidth; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums.rest[n][i] = __fmaf_rn(i < 2 ? scale.x : scale.y, rest[n][i], sums.rest[n][i]);
}

// ---- what becomes of the sums

/// Factors and biases of fragment rows g and g + 8.
struct RowNumbers {
  float factor[2], bias[2];
};

template <Storage kStorage>
__device__ float finish(float sum, const RowNumbers& row, int half) {
  constexpr float kBack = kStorage == Storage::fp4_e4m3 ? kFp4E4m3Back : 1.0f;
  return __fadd_rn(__fmul_rn(__fmul_rn(sum, kBack), row.factor[half]), row.bias[half]);
}

/// A thread's sums in shared memory, sum i of tile n at [(4 n + i) kThreads]. What becomes of them is a loop,
/// and indexing registers in a loop would keep them in the card's memory from the start.
template <Storage kStorage, int kWidth>
__device__ void park(const Sums<kStorage, kWidth>& sums, float* parked) {
#pragma unroll
  for (int n = 0; n < 1 << kWidth; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float whole = sums.first[n][i];
      if constexpr (Sums<kStorage, kWidth>::kRest) whole = __fadd_rn(whole, sums.rest[n][i]);
      parked[(4 * n + i) * kThreads] = whole;
    }
}

__device__ inline float activate(const Epilogue& e, float gate, float up) {
  return Activations::visit(e.activation, [&]<class A>() { return A::apply(gate, up, e.params); });
}

__device__ inline void write_mid(const Planes& mid, int position, int channel, float value) {
  const Terms terms = split(value);
  std::uint16_t* to = mid.data + std::size_t(position) * mid.stride + channel;
  for (int k = 0; k < kMostTerms; ++k)
    if (k < mid.terms) to[k * mid.plane] = terms.of[k];
}

template <Storage kStorage, int kWidth>
__device__ void write_sums(const Product& p, const Place& at, const std::byte* expert, const float* parked) {
  const int g = at.lane / 4, t = at.lane % 4;
  const auto* factors = reinterpret_cast<const float*>(expert + p.weights.factors) + at.strip * kStripRows;
  const auto* bias = reinterpret_cast<const float*>(expert + p.weights.bias) + at.strip * kStripRows;
  const RowNumbers row{{factors[g], factors[g + 8]}, {bias[g], bias[g + 8]}};
  const Epilogue& e = p.epilogue;
#pragma unroll 1
  for (int n = 0; n < 1 << kWidth; ++n)
#pragma unroll 1
    for (int column = 0; column < 2; ++column) {
      const int token = 8 * n + 2 * t + column;
      if (token >= at.tile.count) continue;
      const int position = at.tile.first + token;
      const float upper = finish<kStorage>(parked[(4 * n + column) * kThreads], row, 0);
      const float lower = finish<kStorage>(parked[(4 * n + 2 + column) * kThreads], row, 1);
      if (p.weights.paired) {
        const int channel = at.strip * (kStripRows / 2) + g;
        if (channel < p.weights.rows) write_mid(e.mid, position, channel, activate(e, upper, lower));
        continue;
      }
      for (int half = 0; half < 2; ++half) {
        const int channel = at.strip * kStripRows + 8 * half + g;
        if (channel >= p.weights.rows) continue;
        const float value = half == 0 ? upper : lower;
        if (p.down)
          e.out[position * e.out_stride + channel] = value;
        else
          write_mid(e.mid, position, channel, activate(e, 0.0f, value));
      }
    }
}

// ---- the kernel

template <Storage kStorage, int kWidth>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ Product p) {
  using R = Ring<kStorage, kWidth>;
  extern __shared__ __align__(128) std::byte ring[];
  Place at{.tile = p.tiles[blockIdx.x],
           .strip = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / kLanes,
           .warp = static_cast<int>(threadIdx.x) / kLanes,
           .lane = static_cast<int>(threadIdx.x) % kLanes};
  at.active = at.strip < p.weights.strips;
  const std::byte* expert = p.experts + at.tile.expert * p.expert_bytes;
  const std::byte* strip = expert + p.weights.blocks + at.strip * p.weights.strip_bytes();
  const int stage_bytes = R::stage_bytes(p.input.terms), k_blocks = p.weights.k_blocks;

  __shared__ const std::uint16_t* rows[R::kTokens];
  for (int token = threadIdx.x; token < R::kTokens; token += kThreads) {
    const int position =
        at.tile.first + min(token, at.tile.count - 1);  // what is beyond the tile is not used
    const std::size_t row = p.rows == nullptr ? position : p.rows[position];
    rows[token] = p.input.data + row * p.input.stride;
  }
  __syncthreads();
  for (int k = 0; k < R::kStages - 1; ++k) {
    if (k < k_blocks) R::fetch(p, at, strip, rows, k, ring + k * stage_bytes);
    commit_copies();
  }
  Sums<kStorage, kWidth> sums;
  for (int k = 0; k < k_blocks; ++k) {
    wait_copies<R::kStages - 2>();
    __syncthreads();  // everybody's copies are there, and nobody reads the stage that is filled next
    const int next = k + R::kStages - 1;
    if (next < k_blocks) R::fetch(p, at, strip, rows, next, ring + next % R::kStages * stage_bytes);
    commit_copies();
    if (!at.active) continue;
    const std::byte* stage = ring + k % R::kStages * stage_bytes;
    multiply_block<kStorage, kWidth>(stage, at, p.input.terms, sums);
  }
  __syncthreads();  // nobody reads the ring any more
  static_assert((16 * kThreads << kWidth) <= R::kStages * R::stage_bytes(1), "the sums fit the ring");
  float* const parked = reinterpret_cast<float*>(ring) + threadIdx.x;
  park(sums, parked);
  if (at.active) write_sums<kStorage, kWidth>(p, at, expert, parked);
}

template <Storage kStorage, int kWidth>
cudaError_t start(const Product& product, const Launch& launch) {
  using R = Ring<kStorage, kWidth>;
  const auto* function = reinterpret_cast<const void*>(multiply<kStorage, kWidth>);
  // What the most terms need, whatever this call has: the limit is the function's, and other threads set it
  // too.
  const int most = R::kStages * R::stage_bytes(most_terms(kWidth));
  if (const cudaError_t error =
          cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
      error != cudaSuccess)
    return error;
  const dim3 grid(static_cast<unsigned>(launch.tiles),
                  static_cast<unsigned>((product.weights.strips + kWarps - 1) / kWarps));
  const auto shared = static_cast<std::size_t>(R::kStages * R::stage_bytes(product.input.terms));
  multiply<kStorage, kWidth><<<grid, kThreads, shared, launch.stream>>>(product);
  return cudaGetLastError();
}

template <Storage kStorage>
cudaError_t start_any(const Product& product, const Launch& launch) {
  switch (launch.width) {
    case 0:
      return start<kStorage, 0>(product, launch);
    case 1:
      return start<kStorage, 1>(product, launch);
    case 2:
      return start<kStorage, 2>(product, launch);
    default:
      return start<kStorage, 3>(product, launch);
  }
}

}  // namespace sluice::cuda
