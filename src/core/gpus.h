// SPDX-License-Identifier: Apache-2.0
// What the driver of graphics cards says. It is asked by name when the program runs, so that a build without
// any CUDA knows the cards of its machine too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/device.h"

namespace sluice {

struct GpuReport {
  std::string name;
  int capability = 0;  // 10 * major + minor: 80, 90
  int multiprocessors = 0;
  int clock_khz = 0, memory_clock_khz = 0, memory_bus_bits = 0;
  std::int64_t memory_bytes = 0;
};

/// In the driver's order; empty without a driver, or where it fails.
std::vector<GpuReport> gpu_reports();

/// Instructions follow from the compute capability, never from the name.
DeviceFacts facts_of(const GpuReport& report);

}  // namespace sluice
