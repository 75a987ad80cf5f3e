// SPDX-License-Identifier: Apache-2.0
// Refusing what a call gives. A call that is right makes no text.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace sluice {

/// need(ok, code, "what {}", ...) throws invalid_argument unless `ok`, and says which header to look into.
class Need {
 public:
  explicit constexpr Need(std::string_view todo) : todo_(todo) {}

  template <class... Args>
  void operator()(bool ok, std::string_view code, fmt::format_string<Args...> what,
                  const Args&... args) const {
    require(ok, ErrorKind::invalid_argument, [&] {
      std::string text = fmt::vformat(what, fmt::make_format_args(args...));
      return ErrorInfo{.code = std::string(code), .what = std::move(text), .todo = std::string(todo_)};
    });
  }

 private:
  std::string_view todo_;
};

}  // namespace sluice
