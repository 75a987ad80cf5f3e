// SPDX-License-Identifier: Apache-2.0
#include "lint/findings.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

std::string_view name(Severity severity) {
  return severity == Severity::error ? "error" : severity == Severity::warning ? "warning" : "note";
}

int LintReport::count(Severity severity) const {
  return static_cast<int>(std::count_if(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.severity == severity;
  }));
}

}  // namespace sluice

namespace sluice::linting {

std::string_view name(Part part) {
  constexpr std::string_view kNames[] = {"gate", "up", "down", "shared gate", "shared up", "shared down"};
  return kNames[static_cast<std::size_t>(part)];
}

std::vector<const Subject*> of_part(const std::vector<Subject>& subjects, Part part) {
  std::vector<const Subject*> all;
  for (const Subject& subject : subjects)
    if (subject.part == part) all.push_back(&subject);
  std::sort(all.begin(), all.end(), [](const Subject* a, const Subject* b) { return a->expert < b->expert; });
  return all;
}

void LayerFindings::add(Issue issue) {
  const auto same = std::find_if(folded_.begin(), folded_.end(), [&](const Folded& one) {
    return one.first.code == issue.code && one.first.matrix == issue.matrix &&
           one.first.severity == issue.severity;
  });
  if (same == folded_.end()) {
    std::vector<int> experts;
    if (issue.expert >= 0) experts.push_back(issue.expert);
    folded_.push_back({std::move(issue), std::move(experts)});
    return;
  }
  same->first.count += issue.count;
  same->first.of += issue.of;
  if (issue.expert >= 0) same->experts.push_back(issue.expert);
}

std::vector<Finding> LayerFindings::take() {
  std::vector<Finding> all = std::move(whole_);
  for (Folded& one : folded_) {
    Issue& issue = one.first;
    TensorPlace place;
    if (issue.at != nullptr) place = place_(issue.at);
    if (issue.of > 0) {
      issue.numbers.insert(issue.numbers.begin(), {{"count", static_cast<double>(issue.count)},
                                                   {"of", static_cast<double>(issue.of)}});
      issue.text = fmt::format("{} of {} {}", issue.count, issue.of, issue.text);
    }
    std::sort(one.experts.begin(), one.experts.end());
    all.push_back({.severity = issue.severity,
                   .code = std::string(issue.code),
                   .layer = layer_,
                   .matrix = std::string(issue.matrix),
                   .experts = std::move(one.experts),
                   .what = std::move(issue.text),
                   .todo = std::move(issue.todo),
                   .file = std::move(place.file),
                   .tensor = std::move(place.tensor),
                   .numbers = std::move(issue.numbers)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  return all;
}

}  // namespace sluice::linting
