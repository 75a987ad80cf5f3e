// SPDX-License-Identifier: Apache-2.0
#include "testing/reference_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "activation/activation.h"
#include "experts/backend.h"
#include "experts/reference/definition.h"
#include "format/scales.h"
#include "testing/reference_latent.h"
#include "testing/round_int8.h"

namespace sluice::testing {
namespace {

/// A set of experts over all tokens.
struct Pass {
  const ExpertsSpec& spec;
  std::span<const ExpertWeights> experts;
  std::span<const std::int32_t> expert_map;
  Routing routing;
  LoraCall lora;  // without ids: no adapters
  Rounding rounding = Rounding::none;
};

struct PassResult {
  std::vector<double> out, magnitude;
  std::int64_t values = 0, gate_over_limit = 0, up_over_limit = 0;
};

std::vector<double> to_doubles(const RowsView& rows) {
  std::vector<double> values;
  const std::ptrdiff_t width = bits(rows.dtype) / 8;
  for (int row = 0; row < rows.rows; ++row)
    for (int column = 0; column < rows.width; ++column)
      values.push_back(format::read_number(rows.dtype, rows.data + row * rows.row_stride + column * width));
  return values;
}

void for_each_token(Executor* executor, int tokens, auto&& body) {
  if (executor) {
    parallel_for(*executor, tokens, [&](int token, int) { body(token); });
  } else {
    for (int token = 0; token < tokens; ++token) body(token);
  }
}

/// Rows, and what their numbers may be off by; empty: nothing.
struct Rows {
  std::span<const double> values, reach = {};
};

reference::Round round_of(Rounding rounding) {
  return rounding == Rounding::int8_activations ? round_to_int8 : nullptr;
}

PassResult run_pass(const Pass& pass, const Rows& rows, Executor* executor) {
  const std::span<const double> x = rows.values;
  const std::size_t hidden = static_cast<std::size_t>(pass.spec.hidden);
  const int tokens = pass.routing.tokens;
  PassResult result{.out = std::vector<double>(x.size()), .magnitude = std::vector<double>(x.size())};
  std::vector<reference::Observed> seen(static_cast<std::size_t>(tokens));
  for_each_token(executor, tokens, [&](int token) {
    const std::size_t at = static_cast<std::size_t>(token) * hidden;
    const std::ptrdiff_t slot = std::ptrdiff_t{token} * pass.spec.top_k;
    reference::Observed& observed = seen[static_cast<std::size_t>(token)];
    observed.magnitude = std::span(result.magnitude).subspan(at, hidden);
    std::vector<double> scratch(reference::scratch_doubles(pass.spec));
    reference::compute({pass.spec, pass.experts, pass.expert_map},
                       {.x = x.data() + at,
                        .ids = pass.routing.ids + slot,
                        .weights = pass.routing.weights + slot,
                        .top_k = pass.spec.top_k,
                        .lora = pass.lora.ids.empty() ? nullptr : &pass.lora,
                        .lora_token = token,
                        .x_reach = rows.reach.empty() ? nullptr : rows.reach.data() + at,
                        .round = round_of(pass.rounding)},
                       result.out.data() + at, scratch, &observed);
  });
  for (const reference::Observed& observed : seen) {
    result.values += observed.values;
    result.gate_over_limit += observed.gate_over_limit;
    result.up_over_limit += observed.up_over_limit;
  }
  return result;
}

double relative_difference(std::span<const double> a, std::span<const double> of) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < of.size(); ++i) {
    difference += (a[i] - of[i]) * (a[i] - of[i]);
    norm += of[i] * of[i];
  }
  return norm == 0 ? 0 : std::sqrt(difference / norm);
}

/// The weight of the shared expert for one token.
double shared_weight(const VectorView& gate, std::span<const double> x) {
  if (!gate) return 1;
  double sum = 0;
  for (std::size_t k = 0; k < x.size(); ++k)
    sum += x[k] * format::read_number(gate.dtype, gate.data + static_cast<std::ptrdiff_t>(k) * gate.stride);
  return activation::sigmoid(sum);
}

void add_shared(const ReferenceCall& call, std::span<const double> x, ReferenceResult& result) {
  if (!call.spec.shared) return;
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(call.hidden.rows), 0);
  const std::vector<float> ones(ids.size(), 1.0f);
  const PassResult shared = run_pass({call.spec.shared->experts,
                                      call.weights.shared,
                                      {},
                                      {ids.data(), ones.data(), call.hidden.rows, 1},
                                      {call.adapters, call.adapter_ids, &LoraAdapter::shared},
                                      call.rounding},
                                     {x}, call.executor);
  const std::size_t hidden = static_cast<std::size_t>(call.hidden.width);
  for (std::size_t token = 0; token < ids.size(); ++token) {
    const double weight = shared_weight(call.weights.shared_gate, x.subspan(token * hidden, hidden));
    for (std::size_t i = token * hidden; i < (token + 1) * hidden; ++i) {
      result.block_out[i] += weight * shared.out[i];
      result.block_magnitude[i] += std::abs(weight) * shared.magnitude[i];
    }
  }
}

}  // namespace

ReferenceResult reference_run(const ReferenceCall& call) {
  const std::vector<double> x = to_doubles(call.hidden);
  const ExpertsSpec& spec = call.spec.routed;
  const LoraCall lora{.adapters = call.adapters, .ids = call.adapter_ids};
  Measured latent;
  if (call.spec.latent) latent = to_latent(*call.weights.latent, x);
  const Rows rows = call.spec.latent ? Rows{latent.values, latent.magnitude} : Rows{x};
  const auto pass = [&](const ExpertsSpec& with) {
    return run_pass({with, call.weights.routed, call.expert_map, call.routing, lora, call.rounding}, rows,
                    call.executor);
  };
  const auto back = [&](const PassResult& sums) {
    if (!call.spec.latent) return Measured{sums.out, sums.magnitude};
    return from_latent(*call.spec.latent, *call.weights.latent,
                       {sums.out, sums.magnitude, call.rounding != Rounding::none});
  };
  const PassResult routed = pass(spec);
  const Measured experts = back(routed);

  ReferenceResult result{.experts_out = experts.values,
                         .experts_magnitude = experts.magnitude,
                         .block_out = experts.values,
                         .block_magnitude = experts.magnitude};
  if (call.spec.latent) {
    result.latent_out = routed.out;
    result.latent_magnitude = routed.magnitude;
  }
  add_shared(call, x, result);
  if (routed.values > 0) {
    const double values = static_cast<double>(routed.values);
    result.gate_over_limit = static_cast<double>(routed.gate_over_limit) / values;
    result.up_over_limit = static_cast<double>(routed.up_over_limit) / values;
  }
  if (std::isfinite(spec.params.limit)) {
    ExpertsSpec unlimited = spec;
    unlimited.params.limit = std::numeric_limits<float>::infinity();
    result.experts_out_without_clamp = back(pass(unlimited)).values;
    result.clamp_effect = relative_difference(result.experts_out_without_clamp, result.experts_out);
  }
  return result;
}

}  // namespace sluice::testing
