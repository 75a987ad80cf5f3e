// SPDX-License-Identifier: Apache-2.0
// The verbs. Each returns an exit code (errors.h) and throws sluice::Error for everything that goes wrong.
#pragma once

#include "arguments.h"

namespace sluice::tools {

int execute(const InspectOptions& options, Form form);
int execute(const ExplainOptions& options, Form form);
int execute(const RunOptions& options, Form form);
int execute(const CheckOptions& options, Form form);
int execute(const BenchOptions& options, Form form);
int execute(const SampleOptions& options, Form form);

}  // namespace sluice::tools
