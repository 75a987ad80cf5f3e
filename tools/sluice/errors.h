// SPDX-License-Identifier: Apache-2.0
// From exceptions to exit codes and to text of four parts: what, where, why, and what to do.
#pragma once

#include "arguments.h"
#include "sluice/error.h"

namespace sluice::tools {

/// Documented in docs/cli.md; scripts rely on them.
enum ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kUsage = 2,
  kRefusedFile = 3,
  kUnsupported = 4,
  kDoesNotFit = 5,
  kCheckFailed = 6,
  kDevice = 7,
  kIo = 8,
};

ExitCode exit_code(ErrorKind kind);

/// Writes the error to stderr, and with Form::json also as a document to stdout. Returns nothing to decide
/// on.
void report(const ErrorInfo& info, Form form);

/// Reports the exception that is being handled, whatever it is, and returns its exit code.
int report_current_exception(Form form);

}  // namespace sluice::tools
