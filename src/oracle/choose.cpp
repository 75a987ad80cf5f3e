// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "oracle/oracle.h"

namespace sluice {
namespace {

std::vector<KernelCost> costs(const Backend& backend, const Request& request) {
  std::vector<KernelCost> costs;
  for (const int tokens : request.tokens) {
    const Kernel& kernel = *kernel_for(backend, tokens);
    double us = 0;
    for (const FormatGroup& group : format_groups(request.layer.routed))
      us += kernel.estimate_us(group.spec, request.device, tokens);
    if (request.layer.shared) us += kernel.estimate_us(request.layer.shared->experts, request.device, tokens);
    costs.push_back({std::string(kernel.name), tokens, us, "estimated"});
  }
  return costs;
}

/// A verdict with what it is sorted by.
struct Ranked {
  Verdict verdict;
  bool asked_for = false;
  double us = 0;
  int uses = 0;

  /// Those that fit first, the cheaper before the dearer, the more specialised before the plainer; then the
  /// one asked for by name, then the nearest to fitting.
  auto rank() const { return std::tuple(!verdict.fits, !asked_for, verdict.misses.size(), us, -uses); }
};

Ranked judge(const Backend& backend, const Request& request) {
  Ranked ranked{.verdict = {.backend = std::string(backend.name), .misses = compare(backend, request)},
                .asked_for = backend.name == request.by_name};
  ranked.verdict.fits = ranked.verdict.misses.empty();
  if (!ranked.verdict.fits) return ranked;
  ranked.uses = backend.can.uses.size();
  ranked.verdict.kernels = costs(backend, request);
  for (const KernelCost& cost : ranked.verdict.kernels) ranked.us += cost.us;
  return ranked;
}

void check(const Request& request, std::span<const Backend* const> among) {
  validate(request.layer);
  require(!request.tokens.empty() && std::ranges::min(request.tokens) > 0, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "bad_token_counts",
                     .what = "the token counts to plan for must be positive numbers",
                     .why = fmt::format("got {{{}}}", fmt::join(request.tokens, ", ")),
                     .todo = "Name the counts that matter, for example 1, 16, 256"};
  });
  require(request.by_name.empty() || find_backend(request.by_name, among), ErrorKind::invalid_argument, [&] {
    std::vector<std::string_view> names;
    for (const Backend* backend : among) names.push_back(backend->name);
    return ErrorInfo{.code = "unknown_backend",
                     .what = fmt::format("no backend is called '{}'", request.by_name),
                     .why = fmt::format("this build has {}", fmt::join(names, ", ")),
                     .todo = "Use one of these names, or none to have the best one chosen"};
  });
}

}  // namespace

const Backend* find_backend(std::string_view name, std::span<const Backend* const> among) {
  for (const Backend* backend : among)
    if (backend->name == name) return backend;
  return nullptr;
}

Plan choose(const Request& request, std::span<const Backend* const> among) {
  check(request, among);
  std::vector<Ranked> all;
  for (const Backend* backend : among) all.push_back(judge(*backend, request));
  std::ranges::stable_sort(all, {}, &Ranked::rank);

  Plan plan{.request = request};
  for (Ranked& ranked : all) plan.verdicts.push_back(std::move(ranked.verdict));
  if (!plan.verdicts.empty() && plan.verdicts.front().fits) plan.chosen = plan.verdicts.front().backend;
  return plan;
}

Plan choose(const Request& request) { return choose(request, backends()); }

}  // namespace sluice
