// SPDX-License-Identifier: Apache-2.0
// sluice bench: time of a layer's routed experts, and its share of what this machine allows.
#include <fmt/format.h>

#include <fstream>

#include "bench_page.h"
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
constexpr const char* kRow = "{:>7}  {:<14} {:>11}  {:>11}  {:>11}  {:>11}  {:>10}  {:>15}  {}\n";

std::string header_text(const Subject& subject, int threads) {
  return fmt::format("{}, {} threads\n  {}\n\n", printable(subject.shape), threads,
                     summary({.layer = subject.spec, .device = detect()})) +
         fmt::format(fmt::runtime(kRow), "tokens", "backend", "median", "p10", "best", "bytes", "floor",
                     "share", "roof, measured in the same seconds");
}

std::string us(double microseconds) { return fmt::format("{:.1f} us", microseconds); }

/// Of the median, and in brackets of the tenth percentile and of the best.
std::string share_text(const BenchResult& result) {
  return fmt::format("{:.0f} % ({:.0f}, {:.0f})", 100 * result.share_of_floor,
                     100 * result.share_of_floor_p10, 100 * result.share_of_floor_best);
}

std::string row_text(const BenchResult& result) {
  return fmt::format(fmt::runtime(kRow), result.tokens, result.backend, us(result.median_us),
                     us(result.p10_us), us(result.best_us), bytes_text(result.bytes), us(result.floor_us),
                     share_text(result),
                     fmt::format("{:.1f} GB/s, {:.0f} Gflop/s {}", result.roof.read_gbps, result.roof.gflops,
                                 result.roof.arithmetic));
}

std::string ceilings_text(const testing::Ceilings& ceilings) {
  Table table({"ceilings of this run", "median", "p10", "best", ""});
  const auto add = [&](const std::string& name, const testing::Rate& rate, const char* unit) {
    const auto text = [](double value) { return fmt::format("{:.1f}", value); };
    table.add({name, text(rate.median), text(rate.p10), text(rate.best), unit});
  };
  add(fmt::format("random slices, huge pages ({:.0f} % were)", 100 * ceilings.huge_pages), ceilings.slices_2m,
      "GB/s");
  add("random slices, 4 KiB pages", ceilings.slices_4k, "GB/s");
  add("from end to end", ceilings.sequential, "GB/s");
  for (const testing::Ceilings::Arithmetic& kind : ceilings.arithmetic)
    add(std::string(kind.name), kind.gflops, "Gop/s");
  return "\n" + table.str() +
         "\nfloor: the bytes of the experts hit and the operations, at the roof of the same seconds; share: "
         "floor over\ntime, of the median (and of the tenth percentile and the best, by the roof's)\n";
}

/// Opened before anything is measured, so that a folder that is not there is noticed then.
class Page {
 public:
  explicit Page(const std::string& path) : path_(path) {
    if (path_.empty()) return;
    file_.open(path_, std::ios::binary);
    if (!file_) fail("cannot be written");
  }
  void add(std::string document) {
    if (!path_.empty()) documents_.push_back(std::move(document));
  }
  void write() {
    if (path_.empty()) return;
    file_ << bench_page(documents_);
    file_.close();
    if (!file_) fail("was not written to its end");
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorKind::io, {.code = "page_not_written",
                                .what = "the page " + path_ + " " + why,
                                .file = path_,
                                .todo = "give --html a file in a folder that exists, on a disk with room"});
  }

  std::string path_;
  std::ofstream file_;
  std::vector<std::string> documents_;
};

}  // namespace

int execute(const BenchOptions& options, Form form) {
  require_backend_name(options.backend);
  Page page(options.html);
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
  const std::vector<BenchResult> results =
      testing::bench_layer(request, std::move(subject.weights), [&](const BenchResult& result) {
        progress.clear();
        const std::string document = to_json(result);
        print(form == Form::json ? document : row_text(result));
        page.add(document);
      });
  if (form == Form::text) print(ceilings_text(*results.back().ceilings));
  page.write();
  return kOk;
}

}  // namespace sluice::tools
