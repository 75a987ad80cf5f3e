// SPDX-License-Identifier: Apache-2.0
// Throwing with a reason. `require` is the only check of untrusted input; its message says what, where and
// why.
#pragma once

#include <utility>

#include "sluice/error.h"

namespace sluice {

[[noreturn]] void fail(ErrorKind kind, ErrorInfo info);

/// Throws unless `ok`. `make` builds the ErrorInfo and runs only on failure, so checks in loops cost a
/// branch.
template <class Make>
void require(bool ok, ErrorKind kind, Make&& make) {
  if (!ok) [[unlikely]]
    fail(kind, std::forward<Make>(make)());
}

}  // namespace sluice
