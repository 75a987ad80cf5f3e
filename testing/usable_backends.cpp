// SPDX-License-Identifier: Apache-2.0
#include "testing/usable_backends.h"

namespace sluice::testing {

std::vector<const Backend*> usable_backends(FeatureSet features) {
  std::vector<const Backend*> usable;
  for (const Backend* backend : backends()) {
    const std::vector<DeviceFacts> devices = detect(backend->can.device);
    if (!devices.empty() && backend->can.uses.minus(devices.front().has).empty() &&
        !backend->kernels().empty() && features.minus(backend->can.features).empty())
      usable.push_back(backend);
  }
  return usable;
}

}  // namespace sluice::testing
