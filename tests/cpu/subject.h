// SPDX-License-Identifier: Apache-2.0
// The fixture of the tests over backends: each runs once for every subject, and says why where it cannot.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cpu/drawn_layer.h"

namespace sluice::testing {

/// Those that CPU backends have kernels for.
inline std::vector<Format> all_formats() {
  std::vector<Format> formats;
  backend_named("cpu.avx2").can.weights.each([&](Format format) { formats.push_back(format); });
  return formats;
}

inline std::vector<Format> all_integer_formats() {
  std::vector<Format> formats = all_formats();
  std::erase_if(formats, [](Format format) { return !is_integer(format); });
  return formats;
}

class Subject : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(subject());
    if (!reason.empty()) GTEST_SKIP() << GetParam() << ": " << reason;
  }

  const Backend& subject() const { return backend_named(GetParam()); }
  std::vector<float> run_once(const DrawnLayer& layer, const DrawnCall& call) {
    return run(*pack(subject(), layer, *team_), call, *team_);
  }

  /// All of them; the portable subjects, which are fifty times slower, share them between each other.
  std::vector<Format> formats() const { return mine(all_formats()); }
  std::vector<Format> integer_formats() const { return mine(all_integer_formats()); }

  std::unique_ptr<Executor> team_ = make_thread_team(2);

 private:
  std::vector<Format> mine(std::vector<Format> all) const {
    const std::string_view name = GetParam();
    if (!name.starts_with("portable.")) return all;
    std::size_t at = name == "portable.8" ? 0 : 1;
    std::erase_if(all, [&](Format) { return at++ % 2 == 1; });
    return all;
  }
};

/// "cpu.avx2" as part of a test's name.
inline std::string subject_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& letter : name)
    if (letter == '.') letter = '_';
  return name;
}

}  // namespace sluice::testing
