// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/text.h"

#include <fmt/format.h>

#include <cstdint>

namespace sluice::checkpoint {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<std::uint8_t>(text[i]) : 0;
}

/// Bytes of the character that starts at `i`, or 0 when it is none.
std::size_t utf8_length(std::string_view text, std::size_t i) {
  const std::uint8_t first = byte_at(text, i);
  const std::uint8_t second = byte_at(text, i + 1);
  const auto follows = [&](std::size_t k) { return (byte_at(text, i + k) & 0xC0) == 0x80; };
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const std::uint8_t low = first == 0xE0 ? 0xA0 : 0x80;   // no overlong forms
    const std::uint8_t high = first == 0xED ? 0x9F : 0xBF;  // no surrogates
    return second >= low && second <= high && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const std::uint8_t low = first == 0xF0 ? 0x90 : 0x80;
    const std::uint8_t high = first == 0xF4 ? 0x8F : 0xBF;  // at most U+10FFFF
    return second >= low && second <= high && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

bool is_control(std::string_view text, std::size_t i) {
  const std::uint8_t c = byte_at(text, i);
  return c < 0x20 || c == 0x7F || (c == 0xC2 && byte_at(text, i + 1) < 0xA0);
}

}  // namespace

std::optional<std::size_t> bad_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

bool has_control_characters(std::string_view utf8) {
  for (std::size_t i = 0; i < utf8.size(); ++i)
    if (is_control(utf8, i)) return true;
  return false;
}

std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size();) {
    if (shown.size() > 120) return shown + "...";
    const std::size_t length = utf8_length(text, i);
    if (length == 0 || is_control(text, i)) {
      shown += fmt::format("\\x{:02x}", byte_at(text, i));
      ++i;
    } else {
      shown += text.substr(i, length);
      i += length;
    }
  }
  return shown;
}

}  // namespace sluice::checkpoint
