// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "output.h"

namespace sluice::tools {

namespace {

// Often enough to look alive, seldom enough to cost nothing.
constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kLogLine{10};

}  // namespace

ProgressLine::ProgressLine(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::clear() {
  if (drawn_ && terminal_) fmt::print(stderr, "\r\x1b[K");
  drawn_ = false;
}

Progress ProgressLine::callback() {
  return [this](std::int64_t done, std::int64_t total) { show(done, total); };
}

void ProgressLine::show(std::int64_t done, std::int64_t total) {
  const Clock::time_point now = Clock::now();
  const Clock::duration pause = terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLogLine);
  if (now - shown_ < pause) return;
  shown_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done) / seconds;
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  fmt::print(stderr, "{}{}  {} of {}  {}/s  {:.0f} s left{}", terminal_ ? "\r" : "", label_, bytes_text(done),
             bytes_text(total), bytes_text(static_cast<std::int64_t>(rate)), left,
             terminal_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
}

void tell_notes(const CacheReport& report) {
  for (const std::string& note : report.notes) fmt::print(stderr, "cache: {}\n", printable(note));
}

}  // namespace sluice::tools
