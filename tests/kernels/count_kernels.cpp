// SPDX-License-Identifier: Apache-2.0
// Runs a small layer of every format once for each token count, within a function that callgrind knows by
// name: the instructions of each call are compared with tests/kernels/instructions.txt by
// scripts/check-kernels. Prints the calls in their order, "mxfp4 16", and "mxfp4@cpu.avx2_int8 16".
//
// cpu.avx2 and cpu.avx2_int8 on one thread: callgrind knows AVX2 and no AVX-512, and a team of one neither
// waits nor spins, so that the count is the same every time.
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "experts/backend.h"
#include "sluice/layer.h"
#include "testing/synthetic.h"
#include "testing/usable_backends.h"

namespace sluice::testing {
namespace {

constexpr std::string_view kBackends[] = {"cpu.avx2", "cpu.avx2_int8"};

/// Whole blocks of every format, and two experts that every token goes to, so that an expert has 1, 4 and 16
/// tokens: one vector, a tile in registers, and a panel.
LayerSpec small_layer(Format format) {
  LayerSpec spec = public_shape("gpt-oss-20b", format);
  spec.routed.hidden = 512;
  spec.routed.intermediate = 256;
  spec.routed.experts = spec.routed.local_experts = spec.routed.top_k = 2;
  spec.router.experts = spec.router.top_k = 2;
  return spec;
}
constexpr int kTokens[] = {1, 4, 16};

}  // namespace
}  // namespace sluice::testing

/// The name that callgrind is given. The empty statement keeps the call from becoming a jump, after which
/// callgrind would miss the end.
extern "C" [[gnu::noinline]] void sluice_counted(const sluice::Layer& layer, const sluice::LayerCall& call) {
  layer.run(call);
  asm volatile("");
}

namespace sluice::testing {
namespace {

void count(std::string_view backend, Format format, const std::shared_ptr<Executor>& executor) {
  const LayerSpec spec = small_layer(format);
  const Plan plan = choose({.layer = spec, .device = detect(), .by_name = std::string(backend)});
  const Layer layer(plan, synthetic_weights(spec, 1, *executor), {.executor = executor});
  for (const int tokens : kTokens) {
    const HiddenStates hidden = synthetic_hidden(tokens, spec.routed.hidden, 2);
    RandomRouting routing(spec.routed, tokens, 3);
    std::vector<float> out(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(spec.routed.hidden));
    std::vector<std::byte> workspace(layer.workspace_bytes(tokens));
    const LayerCall call{
        .hidden = hidden.view, .routing = routing.next(), .experts_out = out.data(), .workspace = workspace};
    if (tokens == 1) layer.run(call);  // what happens once: functions of shared libraries are looked up
    sluice_counted(layer, call);
    const std::string of = backend == kBackends[0] ? "" : "@" + std::string(backend);
    std::printf("%s%s %d\n", std::string(format.str()).c_str(), of.c_str(), tokens);
  }
}

}  // namespace
}  // namespace sluice::testing

int main() {
  using namespace sluice::testing;
  const std::shared_ptr<sluice::Executor> executor = sluice::make_thread_team(1);
  int counted = 0;
  for (const std::string_view name : kBackends)
    for (const sluice::Backend* backend : usable_backends())
      if (backend->name == name) {
        backend->can.weights.each([&](sluice::Format format) { count(name, format, executor); });
        ++counted;
      }
  if (counted != 0) return 0;
  std::fprintf(stderr, "this machine cannot run cpu.avx2\n");
  return 77;
}
