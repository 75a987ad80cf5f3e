// SPDX-License-Identifier: Apache-2.0
// sluice inspect MODEL --lint: everything about the values of a checkpoint that its author would want to
// know.
#include "lint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "errors.h"
#include "json.h"
#include "model.h"
#include "output.h"
#include "progress.h"
#include "sluice/executor.h"

namespace sluice::tools {

namespace {

std::string experts_text(const std::vector<int>& experts) {
  if (experts.empty()) return "";
  // The words of layers_text suit experts too.
  std::string text = layers_text(experts);
  return ", " +
         text.replace(0, text.starts_with("layers") ? 6 : 5, experts.size() > 1 ? "experts" : "expert");
}

/// A path inside the model's directory without it.
std::string inside(const std::string& file, const std::string& directory) {
  return file.starts_with(directory + "/") ? file.substr(directory.size() + 1) : file;
}

std::string line(const Finding& finding, const std::string& directory) {
  std::string text = fmt::format("{}[{}] layer {}{}{}: {}", name(finding.severity), finding.code,
                                 finding.layer, experts_text(finding.experts),
                                 finding.matrix.empty() ? "" : ", " + finding.matrix, finding.what);
  if (!finding.tensor.empty())
    text += fmt::format(" ({} in {})", finding.tensor, inside(finding.file, directory));
  return printable(text + ". " + finding.todo) + "\n";
}

std::string percent(double share) {
  return share == 0 ? "0" : share < 0.0001 ? "<0.01%" : fmt::format("{:.2f}%", 100 * share);
}

/// "2^-9 to 2^3", to a tenth of a binade.
std::string powers(float smallest, float largest) {
  const auto power = [](float value) {
    return value > 0 ? fmt::format("2^{:.3g}", std::round(10 * std::log2(static_cast<double>(value))) / 10)
                     : "none";
  };
  return smallest == largest ? power(smallest) : power(smallest) + " to " + power(largest);
}

/// Ranges of all layers whose matrices of a kind are stored alike, as one.
struct Merged {
  MatrixRange range;
  int layers = 1;
  double zeros = 0, top = 0, bottom_scales = 0, top_scales = 0, lowest = 0, highest = 0;

  explicit Merged(const MatrixRange& one) : range(one), lowest(one.magnitude), highest(one.magnitude) {
    weigh(one);
  }
  bool takes(const MatrixRange& one) const {
    return one.matrix == range.matrix && one.storage == range.storage && one.scale_type == range.scale_type;
  }
  void add(const MatrixRange& one) {
    ++layers;
    range.weights += one.weights;
    range.scales += one.scales;
    range.smallest_scale = std::min(range.smallest_scale, one.smallest_scale);
    range.largest_scale = std::max(range.largest_scale, one.largest_scale);
    range.smallest_second = std::min(range.smallest_second, one.smallest_second);
    range.largest_second = std::max(range.largest_second, one.largest_second);
    lowest = std::min(lowest, one.magnitude);
    highest = std::max(highest, one.magnitude);
    weigh(one);
  }
  void weigh(const MatrixRange& one) {
    zeros += one.zero_share * static_cast<double>(one.weights);
    top += one.top_share * static_cast<double>(one.weights);
    bottom_scales += one.bottom_share * static_cast<double>(one.scales);
    top_scales += one.top_scale_share * static_cast<double>(one.scales);
  }
  std::vector<std::string> row() const {
    const auto weights = static_cast<double>(range.weights),
               scales = static_cast<double>(std::max<std::int64_t>(range.scales, 1));
    const bool byte =
        range.scale_type == "F8_E8M0" || range.scale_type == "F8_E4M3" || range.scale_type == "U8";
    const bool second = range.smallest_second != 1 || range.largest_second != 1;
    return {range.matrix,
            range.storage,
            fmt::format("{}", layers),
            lowest == highest ? fmt::format("2^{:.1f}", lowest)
                              : fmt::format("2^{:.1f} to 2^{:.1f}", lowest, highest),
            percent(zeros / weights),
            percent(top / weights),
            range.scales == 0 ? "none" : range.scale_type,
            range.scales == 0 ? "" : powers(range.smallest_scale, range.largest_scale),
            byte ? percent(bottom_scales / scales) + ", " + percent(top_scales / scales) : "",
            second ? powers(range.smallest_second, range.largest_second) : ""};
  }
};

std::string ranges_text(const std::vector<MatrixRange>& ranges) {
  std::vector<Merged> all;
  for (const MatrixRange& range : ranges) {
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const Merged& one) { return one.takes(range); });
    if (same == all.end())
      all.emplace_back(range);
    else
      same->add(range);
  }
  Table table({"matrix", "storage", "layers", "mean weight", "zeros", "top codes", "scales", "from to",
               "at bottom, top", "second"});
  for (const Merged& one : all) table.add(one.row());
  return table.str();
}

std::string counted(int count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string text_of(const LintResult& result) {
  std::string text;
  for (const Severity severity : {Severity::error, Severity::warning, Severity::note})
    for (const Finding& finding : result.report.findings)
      if (finding.severity == severity) text += line(finding, result.model.directory);
  if (!text.empty()) text += "\n";
  return text + ranges_text(result.report.ranges) +
         fmt::format("\n{}, {}, {}; {} read\n", counted(result.report.count(Severity::error), "error"),
                     counted(result.report.count(Severity::warning), "warning"),
                     counted(result.report.count(Severity::note), "note"), bytes_text(result.report.bytes));
}

}  // namespace

int execute_lint(const InspectOptions& options, Form form) {
  const Checkpoint model = open_model(options.model);
  const auto threads = make_thread_team();
  ProgressLine progress("looking at values");
  const LintResult result{model.info(), lint(model, *threads, progress.callback())};
  progress.clear();
  print(form == Form::json ? to_json(result) : text_of(result));
  return result.report.count(Severity::error) > 0 ? kRefusedFile : kOk;
}

}  // namespace sluice::tools
