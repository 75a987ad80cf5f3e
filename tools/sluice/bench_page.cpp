// SPDX-License-Identifier: Apache-2.0
#include "bench_page.h"

namespace sluice::tools {

namespace {

/// An array of them. Text in JSON may hold "</script>", which would end the element that it is in; "<" occurs
/// in strings alone, and there it may be written so.
std::string data_of(std::span<const std::string> documents) {
  std::string data = "[";
  for (const std::string& document : documents) {
    if (data.size() > 1) data += ",\n";
    for (const char letter : document) {
      if (letter == '<')
        data += "\\u003c";
      else if (letter != '\n')
        data += letter;
    }
  }
  return data + "]";
}

/// What goes where "@@NAME@@" stands.
std::string_view part_named(std::string_view name, std::string_view data) {
  if (name == "DATA") return data;
  if (name == "SCRIPT") return page::script();
  if (name == "STYLE") return page::style();
  return page::licence();
}

}  // namespace

std::string bench_page(std::span<const std::string> documents) {
  constexpr std::string_view kMark = "@@";
  const std::string data = data_of(documents);
  std::string text;
  std::string_view rest = page::bench();
  for (std::size_t at = rest.find(kMark); at != std::string_view::npos; at = rest.find(kMark)) {
    text += rest.substr(0, at);
    rest.remove_prefix(at + kMark.size());
    const std::size_t end = rest.find(kMark);
    text += part_named(rest.substr(0, end), data);
    rest.remove_prefix(end + kMark.size());
  }
  text += rest;
  return text;
}

}  // namespace sluice::tools
