// SPDX-License-Identifier: Apache-2.0
// One page out of the documents that `sluice bench --json` prints (docs/decisions/021-bench-pages.md). It
// carries the data, the drawing and the plotting library, and loads nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice::tools {

/// `documents`: sluice.bench/1, one each.
std::string bench_page(std::span<const std::string> documents);

/// The files of tools/sluice/page and third_party/uplot, put into the program by page/embed.cmake.
namespace page {
std::string_view bench();
std::string_view script();
std::string_view style();
std::string_view licence();
}  // namespace page

}  // namespace sluice::tools
