// SPDX-License-Identifier: Apache-2.0
// The two things a processor is asked for at most: to read, and to multiply and add. roof_kernels_x86.cpp has
// them in the widest vectors there are, roof_kernels_other.cpp in plain C++.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sluice/device.h"

namespace sluice::testing {

/// Reads every byte; returns something that depends on all of them. `bytes` is a multiple of 256.
using ReadAll = std::uint64_t (*)(const std::byte* data, std::size_t bytes);

/// `rounds` times `lanes` independent multiply-adds in registers; returns something that depends on them.
using MultiplyAdd = float (*)(int rounds);

struct RoofKernels {
  ReadAll read;
  MultiplyAdd multiply_add;
  int lanes;  // multiply-adds of a round
};

RoofKernels roof_kernels(const Instructions& has);

}  // namespace sluice::testing
