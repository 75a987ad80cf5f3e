// SPDX-License-Identifier: Apache-2.0
// What a processor is asked for at most: to read, and to multiply and add. roof_kernels_x86.cpp has both in
// the widest vectors there are, roof_kernels_other.cpp in plain C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sluice/device.h"

namespace sluice::testing {

/// Reads every byte; returns something that depends on all of them. `bytes` is a multiple of 256.
using ReadAll = std::uint64_t (*)(const std::byte* data, std::size_t bytes);

/// `rounds` times `lanes` independent multiply-adds in registers; returns something that depends on them.
using MultiplyAdd = float (*)(int rounds);

/// One kind of multiply-adds.
struct Arithmetic {
  std::string_view name;  // "f32_fma"; "bf16_dot": vdpbf16ps; "int8_dot": vpdpbusd
  MultiplyAdd run;
  int lanes;   // multiply-adds of a round
  bool exact;  // of bf16 inputs and weights of any format of 16 bits and fewer
};

struct RoofKernels {
  ReadAll read;
  std::vector<Arithmetic> arithmetic;  // float32 first, which every processor has

  /// The fastest that keeps what the inputs are: the one that a floor is of.
  const Arithmetic& fastest_exact() const;
};

RoofKernels roof_kernels(const Instructions& has);

}  // namespace sluice::testing
