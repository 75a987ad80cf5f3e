// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "sluice/error.h"

namespace sluice::tools {

namespace {

bool is_control(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x20 || byte(at) == 0x7f) return true;
  // U+0080 to U+009F are control characters too, and terminals obey them.
  return byte(at) == 0xc2 && at + 1 < text.size() && byte(at + 1) < 0xa0;
}

/// Consecutive numbers as first and last.
std::vector<std::pair<int, int>> runs_of(std::span<const int> numbers) {
  std::vector<std::pair<int, int>> runs;
  for (int number : numbers) {
    if (!runs.empty() && runs.back().second + 1 == number)
      runs.back().second = number;
    else
      runs.emplace_back(number, number);
  }
  return runs;
}

bool looks_like_number(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 || cell == "-");
}

}  // namespace

void print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  throw Error(ErrorKind::io, {.code = "stdout",
                              .what = "cannot write to the standard output",
                              .why = std::strerror(errno),
                              .todo = "check the file or program that takes the output"});
}

void suggest(std::string_view command) {
  if (isatty(STDOUT_FILENO) != 0 && isatty(STDERR_FILENO) != 0) fmt::print(stderr, "next: {}\n", command);
}

std::string printable(std::string_view text) {
  std::string safe;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_control(text, i))
      safe += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    else
      safe += text[i];
  }
  return safe;
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double size = static_cast<double>(bytes);
  std::size_t unit = 0;
  static constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  for (; size >= 1024 && unit + 1 < std::size(kUnits); size /= 1024) ++unit;
  return fmt::format("{:.1f} {}", size, kUnits[unit]);
}

std::string listed(std::span<const std::string> items) {
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += i + 1 == items.size() ? " and " : ", ";
    text += items[i];
  }
  return text;
}

std::string layers_text(std::span<const int> layers) {
  std::vector<std::string> parts;
  for (const auto& [first, last] : runs_of(layers)) {
    if (last - first >= 2) {
      parts.push_back(fmt::format("{} to {}", first, last));
    } else {
      for (int number = first; number <= last; ++number) parts.push_back(std::to_string(number));
    }
  }
  return (layers.size() == 1 ? "layer " : "layers ") + listed(parts);
}

std::string Table::str() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string& first = rows_[std::min<std::size_t>(1, rows_.size() - 1)][c];
      const bool right = looks_like_number(&row == &rows_.front() ? first : row[c]);
      line += right ? fmt::format("  {:>{}}", row[c], widths[c]) : fmt::format("  {:<{}}", row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace sluice::tools
