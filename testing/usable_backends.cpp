// SPDX-License-Identifier: Apache-2.0
#include "testing/usable_backends.h"

namespace sluice::testing {

std::vector<const Backend*> usable_backends() {
  const DeviceFacts here = detect();
  std::vector<const Backend*> usable;
  for (const Backend* backend : backends()) {
    const bool same_kind = backend->can.device == here.kind;
    if (same_kind && backend->can.uses.minus(here.has).empty() && !backend->kernels().empty())
      usable.push_back(backend);
  }
  return usable;
}

}  // namespace sluice::testing
