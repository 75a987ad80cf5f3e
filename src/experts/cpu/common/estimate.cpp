// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/common/estimate.h"

#include <algorithm>
#include <cmath>

#include "core/devices.h"
#include "experts/cpu/common/packed.h"

namespace sluice::cpu {
namespace {

/// Of the peak that products of many tokens reach.
constexpr double kShareOfPeak = 0.7;
/// Decoding a weight takes the time of about this many floating-point operations (AVX2, 4 bits: 2.4
/// instructions for 8 weights, on ports that multiply-adds share).
constexpr double kDecodeFlops = 4;
/// What does not overlap of the shorter of memory and arithmetic.
constexpr double kUnhidden = 1.0 / 8;
/// The parallel loops of a call and the grouping.
constexpr double kFixedUs = 5;

/// Lanes of the arithmetic that `peak_gflops` counts.
int widest_lanes(const DeviceFacts& device) {
  return device.has.has(InstructionList::of<instruction::Avx512f>()) ? 16 : 8;
}

/// Elements of all matrices of one expert.
double expert_weights(const ExpertsSpec& spec) {
  return (spec.formats.gate ? 3.0 : 2.0) * spec.hidden * spec.intermediate;
}

}  // namespace

double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens,
                   const Arithmetic& arithmetic) {
  const int lanes = arithmetic.lanes;
  const double missed = std::pow(1.0 - double(spec.top_k) / spec.experts, tokens);
  const double experts = spec.local_experts * (1.0 - missed);
  const double slots = double(tokens) * spec.top_k * spec.local_experts / spec.experts;

  const double bytes = experts * double(expert_layout(spec, lanes).bytes);
  const double memory_us = 1e-3 * bytes / (arithmetic.bandwidth * std::max(device.read_gbps, 1.0));
  const double flops = expert_weights(spec) * (2 * slots + kDecodeFlops * experts);
  const double gflops = arithmetic.rate * kShareOfPeak * std::max(device.peak_gflops, 1.0) *
                        std::min(1.0, double(lanes) / widest_lanes(device));
  const double arithmetic_us = 1e-3 * flops / gflops;
  const double overlapped =
      std::max(memory_us, arithmetic_us) + kUnhidden * std::min(memory_us, arithmetic_us);
  return kFixedUs + arithmetic.times * overlapped;
}

}  // namespace sluice::cpu
