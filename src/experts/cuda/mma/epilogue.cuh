// SPDX-License-Identifier: Apache-2.0
// What becomes of the sums of a strip: factors and biases of the rows, the activation, and where it goes.
#pragma once

#include "activation/activation.h"
#include "experts/cuda/mma/fragment.cuh"
#include "experts/cuda/mma/multiply.h"

namespace sluice::cuda {

/// Sums of fragment rows g and g + 8 of a strip, for one token.
struct TwoSums {
  float upper, lower;
};

/// `added` is that of an adapter; null: none is added.
template <Storage kStorage>
__device__ float finish(float sum, float factor, const float* added, float bias) {
  constexpr float kBack = kStorage == Storage::fp4_e4m3 ? kFp4E4m3Back : 1.0f;
  float whole = __fmul_rn(__fmul_rn(sum, kBack), factor);
  if (added != nullptr) whole = __fadd_rn(whole, __ldcg(added));
  return __fadd_rn(whole, bias);
}

/// Called, not inlined: all activations are several hundred instructions, and a kernel has up to eight places
/// that need one.
__device__ __noinline__ inline float activate(Activation activation, ActivationParams params, float gate,
                                              float up) {
  return Activations::visit(activation, [&]<class A>() { return A::apply(gate, up, params); });
}

/// Zeros stand in the columns between the last channel and the next multiple of 8.
__device__ inline void write_mid(const Planes& mid, int position, int channel, int channels, float value) {
  if (channel >= mid.columns) return;
  const Terms terms = as_terms(channel < channels ? value : 0.0f, mid.terms);
  std::uint16_t* to = mid.data + static_cast<std::size_t>(position) * mid.stride + mid.place(channel);
#pragma unroll
  for (int k = 0; k < kMostTerms; ++k)
    if (k < mid.terms) to[k * mid.plane] = terms.of[k];
}

/// Factors and biases of fragment rows g and g + 8 of a strip.
struct RowEnds {
  float factor[2], bias[2];
};

__device__ inline RowEnds row_ends(const StripsLayout& weights, const std::byte* expert, int strip, int g) {
  const auto* factors = reinterpret_cast<const float*>(expert + weights.factors) + strip * kStripRows + g;
  const auto* bias = reinterpret_cast<const float*>(expert + weights.bias) + strip * kStripRows + g;
  return {{__ldg(factors), __ldg(factors + 8)}, {__ldg(bias), __ldg(bias + 8)}};
}

/// Where two sums belong: fragment rows g and g + 8 of a strip, and a token's position and slot.
struct Target {
  int strip, g, position, slot;
};

/// Whether a kernel's calls may have adapters. Asking costs the one launch registers that it does not have.
enum class Adapters { may_add, none };

template <Storage kStorage, Adapters kAdapters = Adapters::may_add>
__device__ void write_sums(const Product& p, const Target& at, const RowEnds& ends, TwoSums sums) {
  const Epilogue& e = p.epilogue;
  const float* added =
      kAdapters == Adapters::none || e.added == nullptr
          ? nullptr
          : e.added + static_cast<std::size_t>(at.position) * e.added_stride + at.strip * kStripRows + at.g;
  const float upper = finish<kStorage>(sums.upper, ends.factor[0], added, ends.bias[0]);
  const float lower =
      finish<kStorage>(sums.lower, ends.factor[1], added == nullptr ? nullptr : added + 8, ends.bias[1]);
  if (p.weights.paired) {
    write_mid(e.mid, at.position, at.strip * (kStripRows / 2) + at.g, p.weights.rows,
              activate(e.activation, e.params, upper, lower));
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const int channel = at.strip * kStripRows + 8 * half + at.g;
    const float value = half == 0 ? upper : lower;
    if (!p.down)
      write_mid(e.mid, at.position, channel, p.weights.rows, activate(e.activation, e.params, 0.0f, value));
    else if (channel < p.weights.rows)
      e.out[static_cast<std::size_t>(at.slot) * e.out_stride + channel] = value;
  }
}

}  // namespace sluice::cuda
