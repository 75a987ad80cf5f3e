// SPDX-License-Identifier: Apache-2.0
// How far a load has come, on stderr: one line that is rewritten when a person is watching, otherwise a line
// each ten seconds, so that a short run says nothing in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "sluice/layer.h"

namespace sluice::tools {

class ProgressLine {
 public:
  explicit ProgressLine(std::string label);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// The callback to hand to the library. The line must outlive its use.
  Progress callback();
  /// Takes the line away, before something else is printed.
  void clear();

 private:
  void show(std::int64_t done, std::int64_t total);

  using Clock = std::chrono::steady_clock;
  const std::string label_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
  bool drawn_ = false;
};

/// Why something of a cache was rebuilt or is not kept, a line each on stderr.
void tell_notes(const CacheReport& report);

}  // namespace sluice::tools
