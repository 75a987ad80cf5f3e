// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>

#include "json.h"
#include "output.h"

namespace sluice::tools {

namespace {

/// A part of the text; lines after the first are set under it. An explanation brings lines of its own.
std::string part(std::string_view label, std::string_view text) {
  std::string lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines += fmt::format("  {:<7} {}\n", begin == 0 ? label : "", printable(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

ErrorInfo internal_error(const std::string& why) {
  return {
      .code = "internal",
      .what = "something went wrong inside sluice; this is a bug",
      .why = why,
      .todo =
          "please report it with the command line and, if possible, the files (CONTRIBUTING.md says how)"};
}

}  // namespace

ExitCode exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return kUsage;
    case ErrorKind::corrupt_file:
      return kRefusedFile;
    case ErrorKind::unsupported:
      return kUnsupported;
    case ErrorKind::out_of_memory:
      return kDoesNotFit;
    case ErrorKind::device:
      return kDevice;
    case ErrorKind::io:
      return kIo;
  }
  return kInternal;
}

void report(const ErrorInfo& info, Form form) {
  const std::string text = fmt::format("error[{}]: {}\n", info.code, printable(info.what)) +
                           part("file", info.file) + part("tensor", info.tensor) + part("why", info.why) +
                           part("do", info.todo);
  std::fputs(text.c_str(), stderr);
  if (form == Form::json) print(to_json(info));
}

int report_current_exception(Form form) {
  try {
    throw;
  } catch (const Error& error) {
    report(error.info(), form);
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    report({.code = "out_of_memory",
            .what = "the machine has not enough memory for this",
            .todo = "run on a larger machine, or with fewer tokens at a time"},
           form);
    return kDoesNotFit;
  } catch (const std::exception& error) {
    report(internal_error(error.what()), form);
    return kInternal;
  } catch (...) {
    report(internal_error("an exception of unknown type"), form);
    return kInternal;
  }
}

}  // namespace sluice::tools
