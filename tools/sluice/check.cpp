// SPDX-License-Identifier: Apache-2.0
// sluice check MODEL: backends against the definition and against expected outputs.
#include "testing/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "errors.h"
#include "json.h"
#include "model.h"
#include "output.h"
#include "progress.h"
#include "verbs.h"

namespace sluice::tools {

namespace {

using testing::CheckCase;
using testing::CheckReport;
using testing::ClampStatistics;

std::string cases_text(const CheckReport& report) {
  Table table({"backend", "layer", "rel L2", "at most", "worst", "rms", "ids", "weights", "result"});
  for (const CheckCase& c : report.cases)
    table.add({c.backend, std::to_string(c.layer), fmt::format("{:.1e}", c.rel_l2_max),
               fmt::format("{:.0e}", c.rel_l2_limit), fmt::format("{:.2f}", c.worst_element_units),
               fmt::format("{:.2f}", c.rms_units), c.ids_equal ? "equal" : "differ",
               report.compared_with == "expected" ? fmt::format("{:.0e}", c.weights_max_error) : "-",
               c.failures.empty() ? "passed" : "FAILED"});
  const char* against = report.compared_with == "expected" ? "the expected outputs" : "the definition";
  return table.str() +
         fmt::format(
             "\n  rel L2      of the worst token, against {}\n"
             "  worst, rms  errors against the definition in double, in float32 roundings, at most 4\n",
             against);
}

std::string failures_text(const std::vector<CheckCase>& cases) {
  std::string text;
  for (const CheckCase& c : cases)
    for (const std::string& failure : c.failures)
      text += fmt::format("  FAILED {}, layer {}: {}\n", c.backend, c.layer, failure);
  return text.empty() ? text : "\n" + text;
}

/// A backend that refuses every layer for the same reasons is told once.
std::string not_run_text(const CheckReport& report) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> layers;
  for (const testing::NotRun& missing : report.not_run)
    layers[{missing.backend, missing.why}].push_back(missing.layer);
  std::string text;
  for (const auto& [what, numbers] : layers)
    text += fmt::format("  not run: {} on {}: {}\n", what.first, layers_text(numbers), what.second);
  return text.empty() ? text : "\n" + text;
}

/// The layers that have a limit, each once.
std::map<int, ClampStatistics> clamps_of(const CheckReport& report) {
  std::map<int, ClampStatistics> clamps;
  for (const CheckCase& c : report.cases)
    if (c.clamp.limited) clamps[c.layer] = c.clamp;
  return clamps;
}

/// Whole percents, or what is needed to tell a small share from nothing.
std::string percent(double share) {
  const double value = 100 * share;
  return value >= 1 || value == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.1g}", value);
}

std::string percents(const std::map<int, ClampStatistics>& clamps, double ClampStatistics::*member) {
  // More than this many numbers in a sentence are a table, and the JSON has it.
  constexpr std::size_t kMostNamed = 8;
  std::vector<std::string> shares;
  for (const auto& [layer, clamp] : clamps) shares.push_back(percent(clamp.*member));
  if (clamps.size() <= kMostNamed) return listed(shares) + " %";
  const auto [least, most] =
      std::minmax_element(clamps.begin(), clamps.end(),
                          [&](const auto& a, const auto& b) { return a.second.*member < b.second.*member; });
  return fmt::format("{} to {} %", percent(least->second.*member), percent(most->second.*member));
}

std::string clamp_text(const CheckReport& report) {
  const std::map<int, ClampStatistics> clamps = clamps_of(report);
  if (clamps.empty()) return "No layer that was checked has a clamp.\n";
  std::vector<int> layers;
  for (const auto& [layer, clamp] : clamps) layers.push_back(layer);
  const std::string where = layers_text(layers);
  return fmt::format(
      "The clamp of {} meets {} of the gate values and {} of the up values.\n"
      "Dropping the clamp would change the blocks of {} by {}.\n",
      where, percents(clamps, &ClampStatistics::gate_over_limit),
      percents(clamps, &ClampStatistics::up_over_limit), where, percents(clamps, &ClampStatistics::effect));
}

std::string verdict_text(const CheckReport& report) {
  std::vector<std::string> backends;
  for (const CheckCase& c : report.cases)
    if (std::find(backends.begin(), backends.end(), c.backend) == backends.end())
      backends.push_back(c.backend);
  const auto failed = std::count_if(report.cases.begin(), report.cases.end(),
                                    [](const CheckCase& c) { return !c.failures.empty(); });
  return fmt::format("\n{}: {} of {} comparisons, backends {}.\n", failed == 0 ? "Passed" : "FAILED",
                     failed == 0 ? std::ssize(report.cases) : failed, report.cases.size(), listed(backends));
}

std::string report_text(const CheckReport& report) {
  return cases_text(report) + failures_text(report.cases) + not_run_text(report) + verdict_text(report) +
         clamp_text(report);
}

ErrorInfo failure(const CheckOptions& options) {
  return {.code = "check_failed",
          .what = "a backend does not answer what it should",
          .file = options.expected,
          .why = "the report on the standard output has the numbers",
          .todo = "report it with this output and the output of `sluice explain` for the model"};
}

}  // namespace

int execute(const CheckOptions& options, Form form) {
  if (options.backend != "all") require_backend_name(options.backend);
  const Checkpoint model = open_model(options.model);
  const std::vector<int> layers = options.layer || options.expected.empty()
                                      ? chosen_layers(model, options.layer)
                                      : testing::layers_to_check(model, options.expected);
  std::set<std::string> told;  // each once, not for every layer
  const auto tell = [&](CacheReport cache) {
    std::erase_if(cache.notes, [&](const std::string& note) { return !told.insert(note).second; });
    tell_notes(cache);
  };
  const CheckReport report = [&] {
    ProgressLine progress("packing");
    return testing::check(model, {.layers = layers,
                                  .backend = options.backend,
                                  .expected = options.expected,
                                  .seed = options.seed,
                                  .progress = progress.callback(),
                                  .cache = options.cache,
                                  .on_cache = tell});
  }();
  print(form == Form::json ? to_json(report) : report_text(report));
  if (!report.passed()) {
    sluice::tools::report(failure(options), Form::text);
    return kCheckFailed;
  }
  if (form == Form::text) suggest("sluice bench " + options.model);
  return kOk;
}

}  // namespace sluice::tools
