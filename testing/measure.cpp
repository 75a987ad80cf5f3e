// SPDX-License-Identifier: Apache-2.0
#include "testing/measure.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>

#include "core/devices.h"
#include "core/error.h"
#include "format/formats.h"
#include "sluice/plan.h"
#include "testing/card_meter.h"
#include "testing/measure_card.h"
#include "testing/synthetic.h"

namespace sluice::testing {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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
                     .time = utc_now(),
                     .tokens = tokens,
                     .threads = bench.executor.workers(),
                     .median_us = times.median_us,
                     .p10_us = times.p10_us,
                     .p90_us = times.p90_us,
                     .best_us = times.best_us,
                     .windows = times.windows};
  result.bytes = static_cast<std::int64_t>(experts / calls * static_cast<double>(experts_bytes(spec, 1)));
  result.flops = flops_of(spec, tokens);
  result.roof = bench.meter.roof();
  result.ceilings = bench.ceilings;
  set_floors(result);
  return result;
}

/// Whether that backend runs on cards. An unknown one does not; the plan refuses it.
bool runs_on_cards(std::string_view backend) {
  const auto is_it = [&](const BackendInfo& info) { return info.name == backend && info.device == "cuda"; };
  return std::ranges::any_of(backends_info(), is_it);
}

/// Code for cards, and a card.
void require_card() {
  const bool built = kOpenCard != nullptr, here = !detect(DeviceKinds::of<device::Cuda>()).empty();
  require(built && here, ErrorKind::device, [&] {
    const std::string code = "this build has no code for cards: it was configured without SLUICE_CUDA";
    const std::string card = "this machine shows no CUDA device: libcuda.so.1 is missing, or lists no card";
    return ErrorInfo{
        .code = built ? "no_device" : "no_cuda_build",
        .what = "no card can be measured here",
        .why = (built ? "" : code) + (built || here ? "" : "\n") + (here ? "" : card),
        .todo = fmt::format("{} where a card is; sluice explain --device h200 plans without one",
                            built ? "Run it" : "Build with scripts/build cuda (nvcc 13), and run that")};
  });
}

}  // namespace

double flops_of(const ExpertsSpec& spec, int tokens) {
  const double matrices = spec.formats.gate ? 3 : 2;
  return 2 * matrices * spec.hidden * spec.intermediate * tokens * spec.top_k;
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

DeviceFacts bench_device(const BenchRequest& request) {
  const std::string& name = request.device;
  if (name == "cuda" || name.starts_with("cuda:") || (name.empty() && runs_on_cards(request.backend))) {
    require_card();
    return known_device(name.empty() ? "cuda" : name);
  }
  require(name.empty() || name == "auto" || name == "cpu", ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "not_measurable",
                     .what = fmt::format("\"{}\" is not a device that can be measured here", name),
                     .why = "only what this machine has is: its processor, and cards by number",
                     .todo = "Give auto, cpu, cuda or cuda:N"};
  });
  require(request.from == BenchFrom::ids && request.routing == Popularity::uniform,
          ErrorKind::invalid_argument, [] {
            return ErrorInfo{.code = "only_on_cards",
                             .what = "a processor is measured from ids, in uniform routing",
                             .why = "logits and skewed routing are for cards",
                             .todo = "Name a card, or leave out --from and --routing"};
          });
  return detect();
}

Times summarise(std::vector<double> microseconds) {
  if (microseconds.empty()) return {};
  std::sort(microseconds.begin(), microseconds.end());
  return {.best_us = microseconds.front(),
          .p10_us = microseconds[microseconds.size() / 10],
          .median_us = microseconds[microseconds.size() / 2],
          .p90_us = microseconds[microseconds.size() * 9 / 10],
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
  const DeviceFacts device = bench_device(request);
  if (device.kind != detect().kind) return bench_card(request, device, std::move(weights), each);
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
