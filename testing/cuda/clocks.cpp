// SPDX-License-Identifier: Apache-2.0
#include "testing/cuda/clocks.h"

#include <dlfcn.h>

#include <array>

namespace sluice::testing {
namespace {

// Of nvml.h, which is a stable C interface: every function returns 0 for success.
constexpr int kSmClock = 1;

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Clocks::Clocks(const std::string& bus_id) {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return;
  int (*init)() = nullptr;
  int (*card)(const char*, void**) = nullptr;
  if (!find(library, "nvmlInit_v2", init) || init() != 0) return;
  find(library, "nvmlSystemGetDriverVersion", driver_);
  if (find(library, "nvmlDeviceGetHandleByPciBusId_v2", card) && card(bus_id.c_str(), &card_) == 0)
    find(library, "nvmlDeviceGetClockInfo", clock_);
}

int Clocks::sm_mhz() const {
  unsigned mhz = 0;
  return clock_ != nullptr && clock_(card_, kSmClock, &mhz) == 0 ? static_cast<int>(mhz) : 0;
}

std::string Clocks::driver() const {
  std::array<char, 128> text{};
  return driver_ != nullptr && driver_(text.data(), text.size() - 1) == 0 ? text.data() : "";
}

}  // namespace sluice::testing
