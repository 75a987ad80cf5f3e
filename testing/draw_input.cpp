// SPDX-License-Identifier: Apache-2.0
#include "testing/draw_input.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "format/bf16.h"
#include "testing/draw.h"
#include "testing/reference_run.h"

namespace sluice::testing {

namespace {

constexpr int kTokens = 16;
/// Experts and limits are probed with few tokens, so more is asked for than is promised.
constexpr int kProbes = 4;
constexpr double kWantedShare = 0.2;
constexpr double kLargestScale = 0x1p12;

void set_hidden(LayerInput& input, const std::vector<float>& values, double scale) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t bits = format::float_to_bf16(static_cast<float>(scale * values[i]));
    std::memcpy(input.hidden_bytes.data() + i * sizeof bits, &bits, sizeof bits);
  }
}

/// The routed experts' limit or, where only that is one, the shared expert's as if it were a routed one.
std::optional<std::pair<LayerSpec, LayerWeights>> limited_experts(const LayerSpec& spec,
                                                                  const LayerWeights& weights) {
  LayerSpec limited = spec;
  LayerWeights views = weights;
  limited.shared.reset();
  views.shared.clear();
  if (std::isfinite(spec.routed.params.limit)) return std::pair(limited, views);
  if (!spec.shared || !std::isfinite(spec.shared->experts.params.limit)) return std::nullopt;
  limited.routed = spec.shared->experts;
  limited.latent.reset();
  limited.router = {.score = spec.router.score, .experts = 1, .top_k = 1};
  views.routed = weights.shared;
  views.router = {};
  views.latent.reset();
  return std::pair(limited, views);
}

/// The larger of the two shares, for the first tokens sent to experts in turn.
double share_over_limit(const LayerSpec& spec, const LayerWeights& weights, const LayerInput& input,
                        Executor* executor) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kProbes) *
                                static_cast<std::size_t>(spec.routed.top_k));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(spec.routed.experts));
  const std::vector<float> ones(ids.size(), 1.0f);
  RowsView first = input.hidden;
  first.rows = kProbes;
  const ReferenceResult result =
      reference_run({.spec = spec,
                     .weights = weights,
                     .hidden = first,
                     .routing = {ids.data(), ones.data(), kProbes, spec.routed.top_k},
                     .executor = executor});
  return std::max(result.gate_over_limit, result.up_over_limit);
}

std::vector<std::int64_t> draw_token_ids(const LayerSpec& spec, const LayerWeights& weights, Draw& draw) {
  std::vector<std::int64_t> ids;
  if (!spec.router.by_token_id) return ids;
  const std::int64_t vocabulary = std::ssize(weights.router.table) / spec.router.top_k;
  for (int token = 0; token < kTokens; ++token) ids.push_back(draw.below(vocabulary));
  return ids;
}

}  // namespace

LayerInput draw_layer_input(const LayerSpec& spec, const LayerWeights& weights, std::uint64_t seed,
                            const std::shared_ptr<Executor>& executor) {
  Draw draw(seed);
  const std::vector<float> values = draw.normals(std::int64_t{kTokens} * spec.hidden(), 1.0);
  LayerInput input;
  input.hidden_bytes.resize(values.size() * sizeof(std::uint16_t));
  input.hidden = {.data = input.hidden_bytes.data(),
                  .dtype = DType::bf16,
                  .rows = kTokens,
                  .width = spec.hidden(),
                  .row_stride = std::ptrdiff_t{spec.hidden()} * 2};
  input.token_ids = draw_token_ids(spec, weights, draw);
  set_hidden(input, values, 1);
  const auto limited = limited_experts(spec, weights);
  if (!limited) return input;
  for (double scale = 2; scale <= kLargestScale; scale *= 2) {
    if (share_over_limit(limited->first, limited->second, input, executor.get()) >= kWantedShare) break;
    set_hidden(input, values, scale);
  }
  return input;
}

}  // namespace sluice::testing
