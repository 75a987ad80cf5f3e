// SPDX-License-Identifier: Apache-2.0
#include "core/gpus.h"

#include <dlfcn.h>

#include <array>

namespace sluice {
namespace {

// Of the driver interface (cuda.h), which is a stable C interface: every function returns 0 for success.
constexpr int kClockRate = 13, kMultiprocessors = 16, kMemoryClockRate = 36, kMemoryBusWidth = 37,
              kCapabilityMajor = 75, kCapabilityMinor = 76;

/// The functions that are asked. All or nothing.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*count)(int* devices) = nullptr;
  int (*get)(int* device, int ordinal) = nullptr;
  int (*name)(char* text, int size, int device) = nullptr;
  int (*memory)(std::size_t* bytes, int device) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;

  bool complete() const { return init && count && get && name && memory && attribute; }
};

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

/// The library stays loaded: a backend will use it anyway.
Driver load_driver() {
  Driver driver;
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return driver;
  find(library, "cuInit", driver.init);
  find(library, "cuDeviceGetCount", driver.count);
  find(library, "cuDeviceGet", driver.get);
  find(library, "cuDeviceGetName", driver.name);
  find(library, "cuDeviceTotalMem_v2", driver.memory);
  find(library, "cuDeviceGetAttribute", driver.attribute);
  return driver;
}

GpuReport report_of(const Driver& driver, int device) {
  const auto value = [&](int attribute) {
    int read = 0;
    return driver.attribute(&read, attribute, device) == 0 ? read : 0;
  };
  std::array<char, 256> name{};
  std::size_t bytes = 0;
  GpuReport report;
  if (driver.name(name.data(), static_cast<int>(name.size()) - 1, device) == 0) report.name = name.data();
  if (driver.memory(&bytes, device) == 0) report.memory_bytes = static_cast<std::int64_t>(bytes);
  report.capability = 10 * value(kCapabilityMajor) + value(kCapabilityMinor);
  report.multiprocessors = value(kMultiprocessors);
  report.clock_khz = value(kClockRate);
  report.memory_clock_khz = value(kMemoryClockRate);
  report.memory_bus_bits = value(kMemoryBusWidth);
  return report;
}

}  // namespace

std::vector<GpuReport> gpu_reports() {
  static const Driver driver = load_driver();
  std::vector<GpuReport> reports;
  int devices = 0;
  if (!driver.complete() || driver.init(0) != 0 || driver.count(&devices) != 0) return reports;
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    int device = 0;
    if (driver.get(&device, ordinal) == 0) reports.push_back(report_of(driver, device));
  }
  return reports;
}

}  // namespace sluice
