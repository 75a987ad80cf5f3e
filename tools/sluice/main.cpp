// SPDX-License-Identifier: Apache-2.0
// sluice: reads, explains, runs, checks and measures mixture-of-experts layers. Data goes to stdout,
// everything else to stderr; nothing here touches a network.
#include <exception>
#include <variant>

#include "arguments.h"
#include "errors.h"
#include "verbs.h"

int main(int argc, char** argv) {
  using namespace sluice::tools;
  Form form = Form::text;
  try {
    const std::variant<Arguments, int> parsed = parse_arguments(argc, argv);
    if (const int* code = std::get_if<int>(&parsed)) return *code;
    const Arguments& arguments = std::get<Arguments>(parsed);
    form = arguments.form;
    return std::visit([&](const auto& options) { return execute(options, form); }, arguments.command);
  } catch (...) {
    try {
      return report_current_exception(form);
    } catch (...) {
      return kIo;  // stdout is gone, and so is everything else to be said
    }
  }
}
