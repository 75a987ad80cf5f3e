// SPDX-License-Identifier: Apache-2.0
// Text for people on stdout: tables, sizes, lists, and text out of files made safe for a terminal. No colour
// is used.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools {

/// Writes to stdout; throws io when the pipe or the disk does not take it.
void print(std::string_view text);

/// Says on stderr what to do next, when a person is watching both streams; otherwise nothing.
void suggest(std::string_view command);

/// Text of unknown origin with control characters as \xNN.
std::string printable(std::string_view text);

/// "512 B", "11.8 MiB".
std::string bytes_text(std::int64_t bytes);

/// "19, 14, 33 and 43"
std::string listed(std::span<const std::string> items);

/// "layer 0", "layers 0 to 3", "layers 0, 2 and 5 to 9"; numbers ascending.
std::string layers_text(std::span<const int> layers);

/// A table whose columns are as wide as their widest cell. Numbers are aligned right, everything else left.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sluice::tools
