// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/module_rules.h"

#include <algorithm>

namespace sluice::checkpoint {
namespace {

/// Positions where a component of a dotted name starts, and one past the end plus one.
std::vector<std::size_t> component_starts(std::string_view module) {
  std::vector<std::size_t> starts{0};
  for (std::size_t i = 0; i < module.size(); ++i)
    if (module[i] == '.') starts.push_back(i + 1);
  starts.push_back(module.size() + 1);
  return starts;
}

/// Whether `glob` matches all of `text`. Linear in memory, at most text x glob in time: only the last '*' is
/// retried.
bool glob_matches(std::string_view glob, std::string_view text) {
  std::size_t g = 0, t = 0, star = glob.npos, retry = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      retry = t;
    } else if (g < glob.size() && glob[g] == text[t]) {
      ++g;
      ++t;
    } else if (star != glob.npos) {
      g = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == glob.npos;
}

bool glob_matches_module(std::string_view glob, std::string_view module,
                         const std::vector<std::size_t>& starts) {
  const std::string_view literal = glob.substr(0, glob.find('*'));
  if (!module.starts_with(literal)) return false;
  return std::any_of(starts.begin() + 1, starts.end(),
                     [&](std::size_t end) { return glob_matches(glob, module.substr(0, end - 1)); });
}

}  // namespace

ModuleRules::ModuleRules(const std::vector<std::string>& rules, const std::string& file_name) {
  for (const std::string& rule : rules) {
    if (rule.starts_with("re:")) {
      patterns_.emplace_back(std::string_view(rule).substr(3), file_name);
    } else if (rule.find('*') != rule.npos) {
      globs_.push_back(rule);
    } else {
      names_.insert(rule);
    }
  }
}

ModuleRules ModuleRules::everything() {
  ModuleRules rules;
  rules.everything_ = true;
  return rules;
}

bool ModuleRules::match(std::string_view module) const {
  if (everything_) return true;
  const auto starts = component_starts(module);
  if (!names_.empty())
    for (std::size_t first = 0; first + 1 < starts.size(); ++first)
      for (std::size_t last = first + 1; last < starts.size(); ++last)
        if (names_.contains(module.substr(starts[first], starts[last] - 1 - starts[first]))) return true;
  return std::any_of(globs_.begin(), globs_.end(),
                     [&](const std::string& glob) { return glob_matches_module(glob, module, starts); }) ||
         std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const Pattern& pattern) { return pattern.matches_start(module); });
}

}  // namespace sluice::checkpoint
