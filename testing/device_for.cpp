// SPDX-License-Identifier: Apache-2.0
#include "testing/device_for.h"

#include "experts/backend.h"

namespace sluice::testing {

DeviceFacts device_for(std::string_view name) {
  for (const Backend* backend : backends()) {
    if (backend->name != name) continue;
    const std::vector<DeviceFacts> devices = detect(backend->can.device);
    if (!devices.empty()) return devices.front();
  }
  return detect();
}

}  // namespace sluice::testing
