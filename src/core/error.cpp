// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

namespace sluice {
namespace {

/// "what (file, tensor): why. do": one line for e.what(); the command line prints the fields apart.
std::string message(const ErrorInfo& info) {
  std::string text = info.what;
  if (!info.file.empty() || !info.tensor.empty()) {
    text += " (" + info.file;
    if (!info.file.empty() && !info.tensor.empty()) text += ", ";
    text += info.tensor + ")";
  }
  if (!info.why.empty()) text += ": " + info.why;
  if (!info.todo.empty()) text += ". " + info.todo;
  return text;
}

}  // namespace

Error::Error(ErrorKind kind, ErrorInfo info)
    : std::runtime_error(message(info)), kind_(kind), info_(std::move(info)) {}

void fail(ErrorKind kind, ErrorInfo info) { throw Error(kind, std::move(info)); }

}  // namespace sluice
