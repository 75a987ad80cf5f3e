// SPDX-License-Identifier: Apache-2.0
// Text out of files that nobody vouches for: is it UTF-8, and how may it be shown on a terminal.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::checkpoint {

/// Where `text` stops being UTF-8 (RFC 3629: no overlong forms, no surrogates), or nothing.
std::optional<std::size_t> bad_utf8(std::string_view text);

/// `text` with control characters escaped and bytes that are no UTF-8 shown as \xNN, cut after about 120
/// bytes.
std::string printable(std::string_view text);

/// True for characters that a terminal acts on: below space, DEL, and C1 (U+0080 to U+009F).
bool has_control_characters(std::string_view utf8);

}  // namespace sluice::checkpoint
