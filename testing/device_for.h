// SPDX-License-Identifier: Apache-2.0
// Where a backend asked for by name runs.
#pragma once

#include <string_view>

#include "sluice/device.h"

namespace sluice::testing {

/// This machine's device that a backend of that name runs on; the processor where it has no such device, or
/// no backend has that name.
DeviceFacts device_for(std::string_view backend);

}  // namespace sluice::testing
