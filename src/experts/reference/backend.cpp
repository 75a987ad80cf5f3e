// SPDX-License-Identifier: Apache-2.0
// The definition as a backend: everything is accepted, nothing is packed, tokens are shared out among the
// workers. It runs only where it was asked for by name, so that nobody gets it for want of something faster.
#include <algorithm>
#include <vector>

#include "experts/backend.h"
#include "experts/reference/definition.h"
#include "format/scales.h"

namespace sluice {

extern const Backend kReference;

namespace {

/// Views of the canonical weights and what keeps them alive.
class Views : public PackedExperts {
 public:
  explicit Views(const PackInput& input)
      : PackedExperts(kReference, input.spec),
        experts(input.experts.begin(), input.experts.end()),
        owners(input.experts.size(), input.owner) {}
  std::int64_t bytes() const override { return 0; }

  std::vector<ExpertWeights> experts;
  std::vector<std::shared_ptr<const void>> owners;  // of each expert: an update lets go of one alone
};

std::unique_ptr<PackedExperts> pack(const PackInput& input) { return std::make_unique<Views>(input); }

std::int64_t packed_bytes(const ExpertsSpec&) { return 0; }

void update(PackedExperts& packed, const UpdateInput& input) {
  auto& views = static_cast<Views&>(packed);
  const auto at = static_cast<std::size_t>(input.local);
  views.experts[at] = input.weights;
  views.owners[at] = input.owner;
}

/// A worker's part of the workspace, in doubles: the token, its result, and the definition's scratch.
std::size_t worker_doubles(const ExpertsSpec& spec) {
  return 2 * static_cast<std::size_t>(spec.hidden) + reference::scratch_doubles(spec);
}

std::size_t workspace_bytes(const PackedExperts& packed, int /*tokens*/, int workers) {
  return sizeof(double) * worker_doubles(packed.spec) * static_cast<std::size_t>(workers);
}

void run(const PackedExperts& packed, const Forward& call) {
  const auto& views = static_cast<const Views&>(packed);
  const ExpertsSpec& spec = packed.spec;
  const std::size_t hidden = static_cast<std::size_t>(spec.hidden);
  auto* const workspace = reinterpret_cast<double*>(call.workspace.data());
  const std::ptrdiff_t width = bits(call.input.dtype) / 8;

  const int top_k = call.routing.top_k;
  parallel_for(*call.executor, call.routing.tokens, [&](int token, int worker) {
    const std::span<double> mine(workspace + worker_doubles(spec) * worker, worker_doubles(spec));
    double* const x = mine.data();
    double* const y = x + hidden;
    const std::byte* row = call.input.data + call.row(token) * call.input.row_stride;
    for (int k = 0; k < spec.hidden; ++k) x[k] = format::read_number(call.input.dtype, row + k * width);

    const std::ptrdiff_t slot = std::ptrdiff_t{token} * top_k;
    reference::compute({spec, views.experts, call.expert_map},
                       {.x = x,
                        .ids = call.routing.ids + slot,
                        .weights = call.routing.weights + slot,
                        .top_k = top_k,
                        .lora = call.lora,
                        .lora_token = token},
                       y, mine.subspan(2 * hidden));
    std::transform(y, y + hidden, call.output + call.output_row(token) * std::ptrdiff_t{spec.hidden},
                   [](double value) { return static_cast<float>(value); });
  });
}

/// One multiply-add of the definition takes about 2 ns with decoding (Zen 5, 2026-11), and a token is not
/// divided.
double estimate_us(const ExpertsSpec& spec, const DeviceFacts& device, int tokens) {
  const double matrices = is_gated(spec.activation) ? 3 : 2;
  const double token_us = 2e-3 * matrices * spec.hidden * spec.intermediate * spec.top_k;
  const int rounds = (tokens + device.cores - 1) / std::max(device.cores, 1);
  return token_us * std::max(rounds, 1);
}

constexpr Kernel kKernels[] = {{.name = "definition",
                                .tokens = {},
                                .estimate_us = estimate_us,
                                .workspace_bytes = workspace_bytes,
                                .run = run}};

std::span<const Kernel> kernels() { return kKernels; }

}  // namespace

constinit const Backend kReference{
    .name = "reference",
    .can = {.device = DeviceKinds::of<device::Cpu>(),
            .weights = Formats::everything(),
            .activations = Activations::everything(),
            .features = Features::everything(),
            .calls = CallModes::everything(),
            .integer_groups = {.multiple = 1, .whole_row = true}},
    .pack = pack,
    .packed_bytes = packed_bytes,
    .kernels = kernels,
    .only_by_name = true,
    .update = update,
};

}  // namespace sluice
