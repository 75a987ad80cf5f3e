// SPDX-License-Identifier: Apache-2.0
// The README's example: layer 0 of the model named on the command line, for two tokens of zeros.
#include <sluice/checkpoint.h>
#include <sluice/layer.h>

#include <cstdint>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    sluice::Checkpoint model = sluice::Checkpoint::open(argv[1]);
    sluice::Plan plan = sluice::choose({.layer = model.spec(0), .device = sluice::detect()});
    sluice::Layer layer(plan, model.weights(0));
    const int tokens = 2, hidden = model.spec(0).routed.hidden;
    const std::vector<std::uint16_t> x(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(hidden));
    std::vector<float> y(x.size());
    std::vector<std::byte> workspace(layer.workspace_bytes(tokens));
    layer.run({.hidden = {reinterpret_cast<const std::byte*>(x.data()), sluice::DType::bf16, tokens, hidden,
                          2 * std::ptrdiff_t{hidden}},
               .block_out = y.data(),
               .workspace = workspace});
    std::printf("%s: %g\n", plan.chosen.c_str(), static_cast<double>(y[0]));
    return y[0] == y[static_cast<std::size_t>(hidden)] ? 0 : 1;  // equal tokens, equal answers
  } catch (const sluice::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
