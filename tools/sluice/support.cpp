// SPDX-License-Identifier: Apache-2.0
// sluice_support: prints docs/support.md from what the backends of this build declare, so that the
// documentation cannot promise what `sluice explain` refuses. `sluice_support matrix` prints only the table
// that the README shows.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/plan.h"
#include "sluice/spec.h"

namespace {

using sluice::BackendInfo;

bool has(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::string row(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string header(const std::vector<std::string>& cells) {
  return row(cells) + row(std::vector<std::string>(cells.size(), "---"));
}

/// A row for each name of the list, a column for each backend.
std::string matrix(std::string_view corner, std::span<const std::string_view> names,
                   const std::vector<BackendInfo>& backends,
                   const std::vector<std::string> BackendInfo::*declared) {
  std::vector<std::string> head{std::string(corner)};
  for (const BackendInfo& backend : backends) head.push_back("`" + backend.name + "`");
  std::string text = header(head);
  for (std::string_view name : names) {
    std::vector<std::string> cells{"`" + std::string(name) + "`"};
    for (const BackendInfo& backend : backends)
      cells.emplace_back(has(backend.*declared, name) ? "yes" : "no");
    text += row(cells);
  }
  return text;
}

/// Features have no public list; those that any backend declares are the ones there are.
std::vector<std::string_view> features_of(const std::vector<BackendInfo>& backends) {
  std::vector<std::string_view> names;
  for (const BackendInfo& backend : backends)
    for (const std::string& feature : backend.features)
      if (std::find(names.begin(), names.end(), feature) == names.end()) names.push_back(feature);
  return names;
}

std::string backends_table(const std::vector<BackendInfo>& backends) {
  std::string text = header({"backend", "runs on", "needs", "chosen", "accuracy", "groups of integers"});
  for (const BackendInfo& backend : backends)
    text += row(
        {"`" + backend.name + "`", backend.device,
         backend.instructions.empty() ? "nothing" : fmt::format("{}", fmt::join(backend.instructions, ", ")),
         backend.only_by_name ? "only by name" : "by cost", backend.accuracy,
         backend.integer_groups.empty() ? "none" : backend.integer_groups});
  return text;
}

/// What of {flat, contiguous, batched} x {without, with adapters} a backend has.
std::string cell(const BackendInfo& backend) {
  std::vector<std::string> layouts{"flat"};
  for (const char* layout : {"contiguous", "batched"})
    if (has(backend.calls, layout)) layouts.emplace_back(layout);
  const bool lora = has(backend.features, "lora");
  if (lora && layouts.size() == 3) return "all";
  return fmt::format("{}{}", fmt::join(layouts, ", "), lora ? ", lora" : "");
}

/// A row for each format and a column for each activation.
std::string cells_table(const BackendInfo& backend) {
  std::vector<std::string> head{"`" + backend.name + "`"};
  for (std::string_view activation : sluice::Activation::all())
    head.push_back(fmt::format("`{}`", activation));
  std::string text = header(head);
  for (std::string_view format : sluice::Format::all()) {
    std::vector<std::string> cells{fmt::format("`{}`", format)};
    for (std::string_view activation : sluice::Activation::all())
      cells.push_back(has(backend.formats, format) && has(backend.activations, activation) ? cell(backend)
                                                                                           : "no");
    text += row(cells);
  }
  return text;
}

std::string combinations(const std::vector<BackendInfo>& backends) {
  std::string text =
      "\n## Every combination\n\n"
      "A cell is a format x an activation in the three layouts (flat, contiguous rows, batched rows), "
      "without "
      "and with LoRA\n"
      "adapters, with every parameter of the activation and every bias. \"all\" is all six of them. Each "
      "cell "
      "is two tests:\n\n"
      "```sh\nbuild/dev/tests/conformance/test_conformance --gtest_filter='Support/*cpu_avx2_mxfp4_silu'\n"
      "```\n";
  for (const BackendInfo& backend : backends) text += "\n" + cells_table(backend);
  return text;
}

std::string page(const std::vector<BackendInfo>& backends) {
  return "# What runs what\n\n"
         "Written by `scripts/update-docs` from what the backends declare; do not edit. Everything that is "
         "not declared\n"
         "is refused, with its reason, by `sluice explain`; everything that is declared is compared with the "
         "definition\n"
         "by the conformance tests.\n\n"
         "## Backends\n\n" +
         backends_table(backends) + "\n## Weight formats\n\n" +
         matrix("format", sluice::Format::all(), backends, &BackendInfo::formats) + "\n## Activations\n\n" +
         matrix("activation", sluice::Activation::all(), backends, &BackendInfo::activations) +
         "\n## Features\n\n" + matrix("feature", features_of(backends), backends, &BackendInfo::features) +
         "\n## Calls\n\n" + matrix("call", sluice::CallMode::all(), backends, &BackendInfo::calls) +
         combinations(backends);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<BackendInfo> backends = sluice::backends_info();
  const bool only_matrix = argc > 1 && std::string_view(argv[1]) == "matrix";
  fmt::print("{}", only_matrix ? matrix("weights", sluice::Format::all(), backends, &BackendInfo::formats)
                               : page(backends));
  return 0;
}
