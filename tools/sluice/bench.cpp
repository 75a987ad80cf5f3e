// SPDX-License-Identifier: Apache-2.0
// sluice bench: time of a layer's routed experts, or of a layer on a card, and its share of what the machine
// allows.
#include <fmt/format.h>

#include <fstream>
#include <optional>

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
  std::string shape;
  std::optional<Checkpoint> model = {};  // none: a published shape, whose weights are drawn
  int layer = 0;

  LayerWeights weights(Executor& executor) const {
    return model ? model->weights(layer) : testing::synthetic_weights(spec, 1, executor);
  }
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

Subject subject_of(const BenchOptions& options) {
  if (!options.shape.empty()) {
    LayerSpec spec = testing::public_shape(options.shape, format_named(options.format));
    if (options.group) testing::set_group(spec, *options.group);
    return {std::move(spec), options.shape};
  }
  if (options.model.empty())
    throw Error(ErrorKind::invalid_argument, {.code = "usage",
                                              .what = "there is nothing to measure",
                                              .why = "neither MODEL nor --shape was given",
                                              .todo = "try sluice bench --shape gpt-oss-20b --format mxfp4"});
  Checkpoint model = open_model(options.model);
  const int layer =
      options.layer ? chosen_layers(model, options.layer).front() : model.info().moe_layers.front();
  LayerSpec spec = model.spec(layer);
  std::string name = fmt::format("{} layer {}", model.info().directory, layer);
  return {std::move(spec), std::move(name), std::move(model), layer};
}

bool on_card(const DeviceFacts& device) { return device.kind != detect().kind; }

/// Rows are printed as they come, so widths are fixed.
constexpr const char* kRow = "{:>7}  {:<14} {:>11}  {:>11}  {:>11}  {:>11}  {:>10}  {:>15}  {}\n";

std::string header_text(const Subject& subject, const DeviceFacts& device, const BenchOptions& options,
                        int threads) {
  const std::string how = on_card(device) ? fmt::format("from {}, {} routing", options.from, options.routing)
                                          : fmt::format("{} threads", threads);
  return fmt::format("{}, {}\n  {}\n\n", printable(subject.shape), how,
                     summary({.layer = subject.spec, .device = device})) +
         fmt::format(fmt::runtime(kRow), "tokens", "backend", "median", "p10", "best", "bytes", "floor",
                     "share",
                     on_card(device) ? "launches, clock, share by the bandwidth of this run"
                                     : "roof, measured in the same seconds");
}

std::string us(double microseconds) { return fmt::format("{:.1f} us", microseconds); }

/// Of the median, and in brackets of the tenth percentile and of the best.
std::string share_text(const BenchResult& result) {
  return fmt::format("{:.0f} % ({:.0f}, {:.0f})", 100 * result.share_of_floor,
                     100 * result.share_of_floor_p10, 100 * result.share_of_floor_best);
}

std::string context_text(const BenchResult& result) {
  if (!result.card)
    return fmt::format("{:.1f} GB/s, {:.0f} Gflop/s {}", result.roof.read_gbps, result.roof.gflops,
                       result.roof.arithmetic);
  const testing::OnCard& card = *result.card;
  const std::string clock = card.sm_clock == 0 ? "unknown" : fmt::format("{} MHz", card.sm_clock);
  return fmt::format("{:.4g}, {}, {:.0f} %", card.launches, clock, 100 * card.share_of_floor_here);
}

std::string row_text(const BenchResult& result) {
  return fmt::format(fmt::runtime(kRow), result.tokens, result.backend, us(result.median_us),
                     us(result.p10_us), us(result.best_us), bytes_text(result.bytes), us(result.floor_us),
                     share_text(result), context_text(result));
}

/// What shares are of.
std::string legend_text(const BenchResult& result) {
  if (!result.card)
    return "\nfloor: the bytes of the experts hit and the operations, at the roof of the same seconds; "
           "share:\n"
           "floor over time, of the median (and of the tenth percentile and the best, by the roof's)\n";
  return fmt::format(
      "\nfloor: the bytes of the experts hit, the rows and the operations, at {:.0f} GB/s and\n"
      "{:.0f} Gflop/s ({}); share: floor over time, of the median (and of the\n"
      "tenth percentile and the best)\n"
      "{}, driver {}, {} layers in turn, {} calls in a graph\n",
      result.roof.read_gbps, result.roof.gflops, result.card->roof_from, result.card->device,
      result.card->driver, result.card->layers, result.card->calls);
}

std::string ceilings_text(const BenchResult& result) {
  const testing::Ceilings& ceilings = *result.ceilings;
  Table table({"ceilings of this run", "median", "p10", "best", ""});
  const auto add = [&](const std::string& name, const testing::Rate& rate, const char* unit) {
    const auto text = [](double value) { return fmt::format("{:.1f}", value); };
    table.add({name, text(rate.median), text(rate.p10), text(rate.best), unit});
  };
  if (!result.card) {
    add(fmt::format("random slices, huge pages ({:.0f} % were)", 100 * ceilings.huge_pages),
        ceilings.slices_2m, "GB/s");
    add("random slices, 4 KiB pages", ceilings.slices_4k, "GB/s");
  }
  add("from end to end", ceilings.sequential, "GB/s");
  for (const testing::Ceilings::Arithmetic& kind : ceilings.arithmetic)
    add(std::string(kind.name), kind.gflops, "Gop/s");
  return "\n" + table.str() + legend_text(result);
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
  const Subject subject = subject_of(options);
  BenchRequest request{
      .layer = subject.spec,
      .shape = subject.shape,
      .backend = options.backend,
      .device = options.device,
      .from = options.from == "ids" ? testing::BenchFrom::ids : testing::BenchFrom::logits,
      .routing = options.routing == "uniform" ? testing::Popularity::uniform : testing::Popularity::zipf,
      .tokens = options.tokens,
      .executor = executor,
      .budget = {.seconds = options.seconds},
      .cache = options.cache,
      .on_cache = tell_notes};
  const DeviceFacts device = testing::bench_device(request);  // before anything is drawn
  if (form == Form::text) print(header_text(subject, device, options, executor->workers()));
  ProgressLine progress("packing");
  request.progress = progress.callback();
  const std::vector<BenchResult> results =
      testing::bench_layer(request, subject.weights(*executor), [&](const BenchResult& result) {
        progress.clear();
        const std::string document = to_json(result);
        print(form == Form::json ? document : row_text(result));
        page.add(document);
      });
  if (form == Form::text) print(ceilings_text(results.back()));
  page.write();
  return kOk;
}

}  // namespace sluice::tools
