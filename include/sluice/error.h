// SPDX-License-Identifier: Apache-2.0
// What the library throws. One class; the kind decides the exit code of the command line and the exception
// type of a binding, the text decides whether a user can help himself.
#pragma once

#include <stdexcept>
#include <string>

namespace sluice {

enum class ErrorKind {
  invalid_argument,  // the caller asked for something that makes no sense
  corrupt_file,      // a file contradicts itself, its format or its configuration
  unsupported,       // no backend, family, scheme or format for it
  out_of_memory,     // it does not fit
  device,            // a launch, a driver, a missing instruction
  io,                // the file system said no
};

/// Everything a user needs: what is wrong, where, why, and what to do about it. A field that does not apply
/// is empty. `code` is a stable identifier in snake_case that scripts may test.
struct ErrorInfo {
  std::string code;
  std::string what;
  std::string file = {};
  std::string tensor = {};
  std::string why = {};
  std::string todo = {};
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, ErrorInfo info);

  ErrorKind kind() const { return kind_; }
  const ErrorInfo& info() const { return info_; }

 private:
  ErrorKind kind_;
  ErrorInfo info_;
};

}  // namespace sluice
