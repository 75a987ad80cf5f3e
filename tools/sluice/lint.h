// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arguments.h"

namespace sluice::tools {

/// sluice inspect MODEL --lint. Exit code 3 when there are errors: a file that holds them is refused.
int execute_lint(const InspectOptions& options, Form form);

}  // namespace sluice::tools
