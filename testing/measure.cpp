// SPDX-License-Identifier: Apache-2.0
#include "testing/measure.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "format/formats.h"
#include "sluice/plan.h"
#include "testing/device_for.h"
#include "testing/synthetic.h"

namespace sluice::testing {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Multiply-adds counted twice, for every matrix that a slot goes through.
double flops_of(const ExpertsSpec& spec, int tokens) {
  const double matrices = spec.formats.gate ? 3 : 2;
  return 2 * matrices * spec.hidden * spec.intermediate * tokens * spec.top_k;
}

/// What stays the same for all token counts.
struct Bench {
  const BenchRequest& request;
  const Layer& layer;
  Executor& executor;
  RoofMeter& meter;
  std::shared_ptr<const Ceilings> ceilings;
};

/// At one rank of the windows.
double floor_us(const BenchResult& result, double Times::*rank) {
  const Roof& roof = result.roof;
  return std::max(static_cast<double>(result.bytes) / roof.read_bytes * roof.read.*rank,
                  result.flops / roof.flops * roof.compute.*rank);
}

void set_floors(BenchResult& result) {
  result.floor_us = floor_us(result, &Times::median_us);
  result.floor_p10_us = floor_us(result, &Times::p10_us);
  result.floor_best_us = floor_us(result, &Times::best_us);
  result.share_of_floor = result.floor_us / result.median_us;
  result.share_of_floor_p10 = result.floor_p10_us / result.p10_us;
  result.share_of_floor_best = result.floor_best_us / result.best_us;
}

BenchResult bench_tokens(const Bench& bench, int tokens) {
  const ExpertsSpec& spec = bench.request.layer.routed;
  const HiddenStates hidden = synthetic_hidden(tokens, bench.request.layer.hidden(), bench.request.seed);
  RandomRouting routing(spec, tokens, bench.request.seed);
  std::vector<float> out(static_cast<std::size_t>(tokens) *
                         static_cast<std::size_t>(bench.request.layer.hidden()));
  std::vector<std::byte> workspace(bench.layer.workspace_bytes(tokens));
  LayerCall call{.hidden = hidden.view, .experts_out = out.data(), .workspace = workspace};

  double experts = 0, calls = 0;
  bench.meter.restart();
  const auto prepare = [&] {
    call.routing = routing.next();
    experts += routing.distinct();
    calls += 1;
    bench.meter.window();
  };
  const Times times = time_calls(bench.request.budget, prepare, [&] { bench.layer.run(call); });

  BenchResult result{.backend = bench.layer.plan().chosen,
                     .shape = bench.request.shape,
                     .format = storage_text(spec.formats),
                     .processor = detect().name,
                     .tokens = tokens,
                     .threads = bench.executor.workers(),
                     .median_us = times.median_us,
                     .p10_us = times.p10_us,
                     .best_us = times.best_us,
                     .windows = times.windows};
  result.bytes = static_cast<std::int64_t>(experts / calls * static_cast<double>(experts_bytes(spec, 1)));
  result.flops = flops_of(spec, tokens);
  result.roof = bench.meter.roof();
  result.ceilings = bench.ceilings;
  set_floors(result);
  return result;
}

}  // namespace

Times summarise(std::vector<double> microseconds) {
  if (microseconds.empty()) return {};
  std::sort(microseconds.begin(), microseconds.end());
  return {.best_us = microseconds.front(),
          .p10_us = microseconds[microseconds.size() / 10],
          .median_us = microseconds[microseconds.size() / 2],
          .windows = static_cast<int>(microseconds.size())};
}

Rate rate_of(const Times& times, double work) {
  if (times.windows == 0) return {};
  return {.median = work / times.median_us * 1e-3,
          .p10 = work / times.p10_us * 1e-3,
          .best = work / times.best_us * 1e-3};
}

Times time_calls(const Budget& budget, const std::function<void()>& prepare,
                 const std::function<void()>& call) {
  for (int i = 0; i < budget.warm_up; ++i) {
    prepare();
    call();
  }
  std::vector<double> windows;
  double total = 0;
  while (static_cast<int>(windows.size()) < budget.most &&
         (static_cast<int>(windows.size()) < budget.least || total < budget.seconds)) {
    prepare();
    const double start = seconds_now();
    call();
    const double took = seconds_now() - start;
    windows.push_back(took * 1e6);
    total += took;
  }
  return summarise(std::move(windows));
}

std::vector<BenchResult> bench_layer(const BenchRequest& request, LayerWeights weights,
                                     const std::function<void(const BenchResult&)>& each) {
  const DeviceFacts device = device_for(request.backend);
  require(device.kind == detect().kind, ErrorKind::unsupported, [&] {
    return ErrorInfo{.code = "bench_of_a_card",
                     .what = request.backend + " runs on a card, and only processors are benchmarked",
                     .why = "the roof that a share is stated of is measured on the processor",
                     .todo = "Name a backend of the processor"};
  });
  const Plan plan = choose(
      {.layer = request.layer, .device = device, .tokens = request.tokens, .by_name = request.backend});
  const Layer layer(plan, weights,
                    {.executor = request.executor,
                     .progress = request.progress,
                     .cache = request.cache,
                     .cache_check = CacheCheck::at_load});  // none of it within a timed call
  weights = {};
  if (request.on_cache) request.on_cache(layer.cache());
  RoofMeter meter(*request.executor, request.cold_bytes);
  const auto ceilings = std::make_shared<const Ceilings>(meter.ceilings(request.ceiling_windows));
  std::vector<BenchResult> results;
  for (const int tokens : request.tokens) {
    results.push_back(bench_tokens({request, layer, *request.executor, meter, ceilings}, tokens));
    if (each) each(results.back());
  }
  return results;
}

}  // namespace sluice::testing
