// SPDX-License-Identifier: Apache-2.0
// A measurement as the document sluice.bench/1 (docs/schemas/bench.1.json), which the command and the
// programs in bench/ print.
#pragma once

#include <string>
#include <string_view>

#include "testing/measure.h"

namespace sluice::testing {

/// One line, ending in a newline.
std::string bench_json(const BenchResult& result);

/// Of the sources, "3ccde55", with "-dirty" where files differ from it; empty where no git knew.
std::string_view build_commit();

}  // namespace sluice::testing
