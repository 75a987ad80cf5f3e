// SPDX-License-Identifier: Apache-2.0
// The documents that scripts read. Their shape is docs/schemas/*.json: fields are added, never renamed or
// removed.
#pragma once

#include <string>

#include "results.h"
#include "sluice/error.h"
#include "testing/check.h"
#include "testing/measure.h"

namespace sluice::tools {

// Each ends in a newline and carries its schema's name. A measurement is one line; a bench prints one for
// each result.
std::string to_json(const LintResult& result);
std::string to_json(const InspectResult& result);
std::string to_json(const ExplainResult& result);
std::string to_json(const RunResult& result);
std::string to_json(const testing::CheckReport& report);
std::string to_json(const testing::BenchResult& result);
std::string to_json(const SampleResult& result);
std::string to_json(const ErrorInfo& error);

}  // namespace sluice::tools
