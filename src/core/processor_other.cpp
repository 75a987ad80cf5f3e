// SPDX-License-Identifier: Apache-2.0
// A processor without cpuid has none of the instructions we know.
#include "core/machine.h"

namespace sluice {

Processor this_processor() { return {.name = "unknown processor", .has = {}}; }

}  // namespace sluice
