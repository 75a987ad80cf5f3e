# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a C++ file with the commit of SOURCE, unless it says that already: cmake -DSOURCE=.. -DOUT=.. -P build_commit.cmake
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=7 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "")
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
// Written by testing/build_commit.cmake.
#include "testing/bench_json.h"

namespace sluice::testing {

std::string_view build_commit() { return "@commit@"; }

}  // namespace sluice::testing
]])
