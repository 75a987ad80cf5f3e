// SPDX-License-Identifier: Apache-2.0
// What the library must know about a machine in order to choose. Facts are an argument: a laptop can explain
// what an H200 would run, and a test can invent a card.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  int index = 0;  // its place in detect(kind), which is where a layer that is planned for it runs
};

/// The processor this program runs on. `cores` honours affinity and the cgroup quota. Bandwidth and peak are
/// estimates from core count and vector width; `sluice bench` measures them.
DeviceFacts detect();

/// The devices of `kind` that this process may use, in the system's order: the processor, or the graphics
/// cards that the driver shows (CUDA_VISIBLE_DEVICES), none where there is no driver. The runtime of CUDA
/// numbers cards the same way.
std::vector<DeviceFacts> detect(DeviceKind kind);

/// Facts by name: "cpu" and "auto" (this machine), "cuda" and "cuda:0" (its first graphics card), "cuda:1"
/// and so on, "cpu.avx2", "cpu.avx512", "cpu.avx512_bf16" and "cpu.amx" (this machine's shape, that
/// instruction level), a compute capability ("sm80", "sm89", "sm90", ...) or a card ("a100", "l40s", "h100",
/// "h200", ...). Throws invalid_argument naming the known ones, or device where "cuda" finds no such card.
DeviceFacts known_device(std::string_view name);
/// Every name that known_device takes on any machine: all but "cuda" and "cuda:N".
std::span<const std::string_view> known_device_names();

}  // namespace sluice
