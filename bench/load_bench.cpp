// SPDX-License-Identifier: Apache-2.0
// How long a model takes to load, and what that takes of memory: one JSON line.
//
//   bench/large_checkpoint.py /tmp/model && build/release/bench/bench_load /tmp/model [CACHE [BACKEND]]
//
// Makes every MoE layer of the model and holds them all. Then one call a layer that names every expert,
// twice: the first reads what a cache had not read yet. "start_s" ends when every layer could be called,
// "start_cpu_s" is what all threads worked for it.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "sluice/checkpoint.h"
#include "sluice/layer.h"
#include "testing/device_for.h"
#include "testing/synthetic.h"

namespace sluice {
namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Of all threads.
double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

/// The most that was resident at once, files' pages included.
std::int64_t peak_bytes() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return std::int64_t{1024} * used.ru_maxrss;
}

/// One call that names every expert of a layer.
void call_all(const Layer& layer) {
  const ExpertsSpec& spec = layer.plan().request.layer.routed;
  const int tokens = (spec.experts + spec.top_k - 1) / spec.top_k;
  const testing::HiddenStates hidden = testing::synthetic_hidden(tokens, spec.hidden, 1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * spec.top_k));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i) % spec.experts;
  const std::vector<float> weights(ids.size(), 0.25f);
  std::vector<float> out(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(spec.hidden));
  std::vector<std::byte> workspace(layer.workspace_bytes(tokens));
  layer.run({.hidden = hidden.view,
             .routing = {ids.data(), weights.data(), tokens, spec.top_k},
             .experts_out = out.data(),
             .workspace = workspace});
}

double call_all(const std::vector<std::unique_ptr<Layer>>& layers) {
  const double start = seconds();
  for (const auto& layer : layers) call_all(*layer);
  return seconds() - start;
}

int run(const std::string& path, const std::string& cache, const std::string& backend) {
  const double start = seconds();
  const Checkpoint model = Checkpoint::open(path);
  const std::shared_ptr<Executor> executor = make_thread_team();
  std::vector<std::unique_ptr<Layer>> layers;
  CacheReport all;
  std::int64_t packed = 0;
  for (const int number : model.info().moe_layers) {
    const Plan plan = choose({.layer = model.spec(number),
                              .device = testing::device_for(backend),
                              .tokens = {1},
                              .by_name = backend});
    layers.push_back(std::make_unique<Layer>(plan, model.weights_to_pack(number),
                                             LayerOptions{.executor = executor, .cache = cache}));
    const CacheReport report = layers.back()->cache();
    all.loaded += report.loaded;
    all.written += report.written;
    packed += layers.back()->packed_bytes();
    for (const std::string& note : report.notes) std::fprintf(stderr, "%s\n", note.c_str());
  }
  const double start_s = seconds() - start, cpu_s = cpu_seconds();
  const std::int64_t peak = peak_bytes();
  const double first_s = call_all(layers), again_s = call_all(layers);
  std::printf(
      "{\"backend\":\"%s\",\"layers\":%zu,\"threads\":%d,\"file_bytes\":%lld,\"packed_bytes\":%lld,"
      "\"loaded\":%d,"
      "\"written\":%d,\"start_s\":%.4f,\"start_cpu_s\":%.4f,\"first_call_of_all_experts_s\":%.4f,\"same_"
      "again_s\":%.4f,"
      "\"peak_bytes_at_start\":%lld}\n",
      layers.empty() ? "" : layers.front()->plan().chosen.c_str(), layers.size(), executor->workers(),
      static_cast<long long>(model.info().file_bytes), static_cast<long long>(packed), all.loaded,
      all.written, start_s, cpu_s, first_s, again_s, static_cast<long long>(peak));
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const auto argument = [&](int i) { return argc > i ? std::string(argv[i]) : std::string(); };
  if (argc < 2) {
    std::fprintf(stderr, "bench_load MODEL [CACHE [BACKEND]]\n");
    return 2;
  }
  return sluice::run(argument(1), argument(2), argument(3));
}
