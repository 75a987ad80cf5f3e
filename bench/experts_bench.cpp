// SPDX-License-Identifier: Apache-2.0
// Every backend of this machine on every format it declares, for whoever changes a kernel and wants one
// number a line:
//
//   bench_experts --benchmark_filter=cpu.avx2/mxfp4
//
// The shape is Qwen3-30B-A3B's layer: 128 experts of 2048 x 768, top 8. 8 experts take 20 MB in MXFP4, and
// every call goes to freshly drawn ones out of 320 MB, so weights come from memory. `sluice bench` measures
// the roof in the same run and is what a claim is made with; this is quicker.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "experts/backend.h"
#include "sluice/layer.h"
#include "testing/synthetic.h"
#include "testing/usable_backends.h"

namespace sluice::testing {
namespace {

struct Case {
  const Backend* backend;
  Format format;
  int tokens;
};

void run(benchmark::State& state, const Case& bench) {
  const std::shared_ptr<Executor> executor = make_thread_team();
  const LayerSpec spec = public_shape("qwen3-30b-a3b", bench.format);
  const Plan plan = choose({.layer = spec, .device = detect(), .by_name = std::string(bench.backend->name)});
  const Layer layer(plan, synthetic_weights(spec, 1, *executor), {.executor = executor});

  const HiddenStates hidden = synthetic_hidden(bench.tokens, spec.routed.hidden, 2);
  RandomRouting routing(spec.routed, bench.tokens, 3);
  std::vector<float> out(static_cast<std::size_t>(bench.tokens) * spec.routed.hidden);
  std::vector<std::byte> workspace(layer.workspace_bytes(bench.tokens));
  std::int64_t bytes = 0;
  for (auto _ : state) {
    state.PauseTiming();
    const Routing drawn = routing.next();
    bytes += experts_bytes(spec.routed, routing.distinct());
    state.ResumeTiming();
    layer.run({.hidden = hidden.view, .routing = drawn, .experts_out = out.data(), .workspace = workspace});
  }
  state.SetBytesProcessed(bytes);
  state.SetItemsProcessed(state.iterations() * bench.tokens);
}

void register_all() {
  for (const Backend* backend : usable_backends()) {
    if (backend->only_by_name) continue;  // the definition takes seconds a call at these sizes
    backend->can.weights.each([&](Format format) {
      for (const int tokens : {1, 8, 64}) {
        const std::string name =
            std::string(backend->name) + "/" + std::string(format.str()) + "/" + std::to_string(tokens);
        benchmark::RegisterBenchmark(name.c_str(), run, Case{backend, format, tokens})
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    });
  }
}

}  // namespace
}  // namespace sluice::testing

int main(int argc, char** argv) {
  sluice::testing::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
