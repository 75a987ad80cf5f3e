// SPDX-License-Identifier: Apache-2.0
// sluice bench: time of a layer's routed experts, and its share of what this machine allows.
#include <fmt/format.h>

#include "errors.h"
#include "json.h"
#include "model.h"
#include "output.h"
#include "progress.h"
#include "testing/measure.h"
#include "testing/synthetic.h"
#include "verbs.h"

namespace sluice::tools {

namespace {

using testing::BenchRequest;
using testing::BenchResult;

struct Subject {
  LayerSpec spec;
  LayerWeights weights;
  std::string shape;
};

Format format_named(const std::string& text) {
  if (const auto format = Format::parse(text)) return *format;
  std::vector<std::string> names;
  for (std::string_view known : Format::all()) names.emplace_back(known);
  throw Error(ErrorKind::invalid_argument,
              {.code = "no_such_format",
               .what = fmt::format("there is no weight format named \"{}\"", text),
               .why = "this build knows " + listed(names),
               .todo = "give one of them to --format"});
}

Subject subject_of(const BenchOptions& options, Executor& executor) {
  if (!options.shape.empty()) {
    const LayerSpec spec = testing::public_shape(options.shape, format_named(options.format));
    return {spec, testing::synthetic_weights(spec, 1, executor), options.shape};
  }
  if (options.model.empty())
    throw Error(ErrorKind::invalid_argument, {.code = "usage",
                                              .what = "there is nothing to measure",
                                              .why = "neither MODEL nor --shape was given",
                                              .todo = "try sluice bench --shape gpt-oss-20b --format mxfp4"});
  const Checkpoint model = open_model(options.model);
  const int layer =
      options.layer ? chosen_layers(model, options.layer).front() : model.info().moe_layers.front();
  return {model.spec(layer), model.weights(layer), fmt::format("{} layer {}", model.info().directory, layer)};
}

/// Rows are printed as they come, so widths are fixed.
constexpr const char* kRow = "{:>7}  {:<14} {:>11}  {:>11}  {:>11}  {:>11}  {:>10}  {:>6}  {}\n";

std::string header_text(const Subject& subject, int threads) {
  return fmt::format("{}, {} threads\n  {}\n\n", printable(subject.shape), threads,
                     summary({.layer = subject.spec, .device = detect()})) +
         fmt::format(fmt::runtime(kRow), "tokens", "backend", "median", "p10", "best", "bytes", "floor",
                     "share", "roof, measured in the same seconds");
}

std::string us(double microseconds) { return fmt::format("{:.1f} us", microseconds); }

std::string row_text(const BenchResult& result) {
  return fmt::format(fmt::runtime(kRow), result.tokens, result.backend, us(result.median_us),
                     us(result.p10_us), us(result.best_us), bytes_text(result.bytes), us(result.floor_us),
                     fmt::format("{:.0f} %", 100 * result.share_of_floor),
                     fmt::format("{:.1f} GB/s, {:.0f} Gflop/s", result.roof.read_gbps, result.roof.gflops));
}

}  // namespace

int execute(const BenchOptions& options, Form form) {
  require_backend_name(options.backend);
  const std::shared_ptr<Executor> executor = make_thread_team(options.threads);
  Subject subject = subject_of(options, *executor);
  if (form == Form::text) print(header_text(subject, executor->workers()));
  ProgressLine progress("packing");
  const BenchRequest request{.layer = subject.spec,
                             .shape = subject.shape,
                             .backend = options.backend,
                             .tokens = options.tokens,
                             .executor = executor,
                             .progress = progress.callback(),
                             .cache = options.cache,
                             .on_cache = tell_notes};
  testing::bench_layer(request, std::move(subject.weights), [&](const BenchResult& result) {
    progress.clear();
    print(form == Form::json ? to_json(result) : row_text(result));
  });
  if (form == Form::text)
    print(
        "\nfloor: the bytes of the experts hit and the operations, at the roof; share: floor over median\n");
  return kOk;
}

}  // namespace sluice::tools
