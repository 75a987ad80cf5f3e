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

/// The closing bracket of fnmatch's "[...]" that opens at `open`; npos: the bracket is one of the name.
std::size_t closing_bracket(const std::string& glob, std::size_t open) {
  const std::size_t first = open + (glob.compare(open + 1, 1, "!") == 0 ? 2 : 1);
  return first < glob.size() ? glob.find(']', first + 1) : glob.npos;
}

/// The regular expression that a glob stands for, and then whatever is below what it matches.
std::string expression_of(const std::string& glob) {
  std::string expression;
  for (std::size_t i = 0; i < glob.size(); ++i) {
    const char c = glob[i];
    const std::size_t close = c == '[' ? closing_bracket(glob, i) : glob.npos;
    if (close != glob.npos) {
      const bool opposite = glob[i + 1] == '!';
      expression +=
          (opposite ? "[^" : "[") + glob.substr(i + (opposite ? 2 : 1), close - i - (opposite ? 2 : 1)) + "]";
      i = close;
    } else if (c == '*' || c == '?') {
      expression += c == '*' ? ".*" : ".";
    } else {
      const bool word =
          (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
      expression += word ? std::string(1, c) : std::string("\\") + c;
    }
  }
  return expression + "(?:[.].*)?$";
}

/// transformers reads a star or a dot at the end as "and what is below", which a name means anyway.
std::string_view without_tail(std::string_view rule) {
  rule = rule.substr(0, rule.find_last_not_of('*') + 1);
  return rule.substr(0, rule.find_last_not_of('.') + 1);
}

}  // namespace

ModuleRules::ModuleRules(const std::vector<std::string>& rules, const std::string& file_name,
                         Matching matching) {
  for (const std::string& rule : rules)
    if (rule.starts_with("re:"))
      patterns_.emplace_back(std::string_view(rule).substr(3), file_name);
    else
      add(rule, file_name, matching);
}

void ModuleRules::add(const std::string& rule, const std::string& file_name, Matching matching) {
  if (matching == Matching::exact) {
    // A class means every module of it or of one made from it.
    everything_ = everything_ || rule == "Linear" || rule == "Module";
    whole_.insert(rule);
  } else if (matching == Matching::wildcards) {
    if (rule.find_first_of("*?[") == rule.npos)
      subtrees_.insert(rule);
    else
      add_glob(rule, file_name);
  } else if (rule.find_first_of("^$()[]{}|\\+?") != rule.npos) {
    patterns_.emplace_back(rule, file_name);
  } else if (const std::string_view subtree = without_tail(rule); subtree.find('*') == subtree.npos) {
    if (rule == "*") everything_ = true;
    subtrees_.emplace(subtree);
  } else {
    add_glob(std::string(subtree), file_name);
  }
}

void ModuleRules::add_glob(const std::string& glob, const std::string& file_name) {
  globs_.push_back({glob.substr(0, glob.find_first_of("*?[")), Pattern(expression_of(glob), file_name)});
}

ModuleRules ModuleRules::everything() {
  ModuleRules rules;
  rules.everything_ = true;
  return rules;
}

bool ModuleRules::match(std::string_view module) const {
  if (everything_) return true;
  if (!whole_.empty()) {
    if (whole_.contains(module) || whole_.contains(other_spelling(module))) return true;
    // A stack is a parameter of the module that is called experts, not a module.
    const std::string_view parent = module.substr(0, std::min(module.rfind('.'), module.size()));
    if (parent.ends_with("experts") && whole_.contains(parent)) return true;
  }
  if (!subtrees_.empty()) {
    const auto starts = component_starts(module);
    for (std::size_t first = 0; first + 1 < starts.size(); ++first)
      for (std::size_t last = first + 1; last < starts.size(); ++last)
        if (subtrees_.contains(module.substr(starts[first], starts[last] - 1 - starts[first]))) return true;
  }
  return std::any_of(globs_.begin(), globs_.end(),
                     [&](const Glob& glob) {
                       return module.starts_with(glob.literal) && glob.pattern.matches_start(module);
                     }) ||
         std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const Pattern& pattern) { return pattern.matches_start(module); });
}

std::string other_spelling(std::string_view module) {
  constexpr std::string_view kOuter = "model.language_model.", kInner = "language_model.model.";
  if (module.starts_with(kOuter)) return std::string(kInner) + std::string(module.substr(kOuter.size()));
  if (module.starts_with(kInner)) return std::string(kOuter) + std::string(module.substr(kInner.size()));
  return {};
}

}  // namespace sluice::checkpoint
