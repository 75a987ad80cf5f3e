// SPDX-License-Identifier: Apache-2.0
// What the library must know about a machine in order to choose. Facts are an argument: a laptop can explain
// what an H200 would run, and a test can invent a card.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sluice/name.h"

namespace sluice {

/// "cpu", "cuda".
using DeviceKind = Name<struct DeviceKindTag>;
/// What a processor reports, never what it is called: "avx2", "fma", "avx512f", "mma_bf16", "wgmma", ...
using Instruction = Name<struct InstructionTag>;
using Instructions = NameSet<struct InstructionTag>;

struct DeviceFacts {
  DeviceKind kind;
  std::string name;  // for people: "AMD EPYC 7763", "H200"
  Instructions has = {};
  int cores = 1;           // CPU threads this process may use, or streaming multiprocessors
  double read_gbps = 0;    // memory read bandwidth, 1e9 bytes a second
  double peak_gflops = 0;  // multiply-adds counted twice, in the widest exact arithmetic the device has
  std::int64_t memory_bytes = 0;
};

/// The processor this program runs on. `cores` honours affinity and the cgroup quota. Bandwidth and peak are
/// estimates from core count and vector width; `sluice bench` measures them.
DeviceFacts detect();

/// Facts by name: "cpu" and "auto" (this machine), "cpu.avx2" and "cpu.avx512" (this machine's shape, that
/// instruction level), a compute capability ("sm80", "sm89", "sm90", ...) or a card ("a100", "l40s", "h100",
/// "h200", ...). Throws invalid_argument naming the known ones.
DeviceFacts known_device(std::string_view name);
/// Every name that known_device takes.
std::span<const std::string_view> known_device_names();

}  // namespace sluice
