// SPDX-License-Identifier: Apache-2.0
#include "experts/reference/definition.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "activation/activation.h"
#include "format/formats.h"
#include "format/scales.h"
#include "routing/group.h"

namespace sluice::reference {
namespace {

/// A sum, the sum of the absolute values of its terms, and the sum of squares of what its terms may be off
/// by.
struct Sum {
  double value = 0, magnitude = 0, spread2 = 0;

  double reach() const { return magnitude + std::sqrt(spread2); }
};

struct Scratch {
  double* x;        // [hidden] the expert's input
  double* x_reach;  // [hidden] what it may be off by, or null
  double* row;      // [max(hidden, intermediate)] one row of weights
  double* mid;      // [intermediate] after the activation
  double* reach;    // [intermediate] how far mid moves with the roundings of gate and up
  double* rounded;  // [max(hidden, intermediate)] x, and later mid, as a product reads them
  double* slack;    // [max(hidden, intermediate)] of those
  Sum* low;         // [2, lora_rank] A x of the gate's delta or down's, then of up's
};

double number(const LoraMatrix& matrix, std::int64_t row, std::int64_t column) {
  return format::read_number(matrix.dtype,
                             matrix.data + row * matrix.row_stride + column * matrix.col_stride);
}

/// What x may be off by is null where it came without error.
void project(const LoraDelta& delta, const double* x, const double* reach, Sum* low) {
  for (std::int64_t r = 0; r < delta.a.rows; ++r) {
    low[r] = {};
    for (std::int64_t k = 0; k < delta.a.cols; ++k) {
      const double weight = number(delta.a, r, k);
      low[r].value += weight * x[k];
      low[r].magnitude += std::abs(weight * x[k]);
      if (reach) low[r].spread2 += weight * reach[k] * weight * reach[k];
    }
  }
}

/// sum += scale * B[row] . low
void add_delta(const LoraDelta& delta, std::int64_t row, const Sum* low, Sum& sum) {
  for (std::int64_t r = 0; r < delta.a.rows; ++r) {
    const double weight = delta.scale * number(delta.b, row, r);
    sum.value += weight * low[r].value;
    sum.magnitude += std::abs(weight) * low[r].magnitude;
    sum.spread2 += weight * weight * low[r].spread2;
  }
}

/// A row as products read it.
Row rounded(const Token& token, const Row& row, int columns, const Scratch& scratch) {
  if (token.round == nullptr || !token.round(row, columns, scratch.rounded, scratch.slack)) return row;
  return {.x = scratch.rounded, .reach = nullptr, .slack = scratch.slack};
}

/// matrix[row] . x + bias[row].
Sum product(const WeightMatrix& matrix, const VectorView& bias, std::int64_t row, const Row& input,
            double* decoded) {
  decode_row(matrix, row, decoded);
  Sum sum;
  if (bias) sum.value = format::read_number(bias.dtype, bias.data + row * bias.stride);
  sum.magnitude = std::abs(sum.value);
  for (std::int64_t k = 0; k < matrix.cols; ++k) {
    sum.value += decoded[k] * input.x[k];
    sum.magnitude += std::abs(decoded[k] * input.x[k]);
    if (input.slack) sum.magnitude += std::abs(decoded[k]) * input.slack[k];
    if (input.reach) sum.spread2 += decoded[k] * input.reach[k] * decoded[k] * input.reach[k];
  }
  return sum;
}

double activate(const ExpertsSpec& spec, double gate, double up) {
  return Activations::visit(spec.activation, [&]<class A>() { return A::apply(gate, up, spec.params); });
}

/// The part of their reach by which gate and up are moved to see what that does. Of rounded rows the reach
/// holds whole steps over what a comparison allows (kRoundedPart), so only that part of it is as large as a
/// step, and a larger one would pass a clamp's limit where no backend can.
constexpr double kPart = 1.0 / 4096;

/// How far the activation moves when gate and up move by a part of their reach, over the part. A difference
/// rather than a derivative, because a clamp has none at its limit. What is infinite has not been rounded and
/// moves nothing.
double reach_of(const ExpertsSpec& spec, const Sum& gate, const Sum& up, double part) {
  const double mid = activate(spec, gate.value, up.value);
  const double gate_reach = gate.reach(), up_reach = up.reach();
  const auto moved = [&](double dgate, double dup) {
    if (!std::isfinite(dgate) || !std::isfinite(dup)) return 0.0;
    return std::abs(activate(spec, gate.value + part * dgate, up.value + part * dup) - mid) / part;
  };
  return std::max(moved(gate_reach, 0), moved(-gate_reach, 0)) +
         std::max(moved(0, up_reach), moved(0, -up_reach));
}

/// An expert and what a token's adapter adds to it.
struct Adapted {
  const ExpertWeights& weights;
  const LoraExpert* delta;  // null for none
};

/// mid = activation(W_gate x + b_gate, W_up x + b_up), with deltas.
void middle(const ExpertsSpec& spec, const Adapted& adapted, const Row& x, const Scratch& scratch,
            Observed* observed) {
  const ExpertWeights& expert = adapted.weights;
  Sum *low_gate = scratch.low, *low_up = scratch.low + spec.lora_rank;
  if (adapted.delta) {
    project(adapted.delta->gate, scratch.x, scratch.x_reach, low_gate);
    project(adapted.delta->up, scratch.x, scratch.x_reach, low_up);
  }
  for (int i = 0; i < spec.intermediate; ++i) {
    Sum gate = expert.gate ? product(*expert.gate, expert.gate_bias, i, x, scratch.row) : Sum{};
    Sum up = product(expert.up, expert.up_bias, i, x, scratch.row);
    if (adapted.delta) {
      add_delta(adapted.delta->gate, i, low_gate, gate);
      add_delta(adapted.delta->up, i, low_up, up);
    }
    scratch.mid[i] = activate(spec, gate.value, up.value);
    if (observed == nullptr) continue;
    observed->values += 1;
    observed->gate_over_limit += gate.value > spec.params.limit;
    observed->up_over_limit += std::abs(up.value) > spec.params.limit;
    if (!observed->magnitude.empty())
      scratch.reach[i] = reach_of(spec, gate, up, x.slack ? kRoundedPart : kPart);
  }
}

/// scratch_doubles of them, shared out; a Sum is three.
Scratch carve(const ExpertsSpec& spec, std::span<double> scratch, bool x_has_reach) {
  const int widest = std::max(spec.hidden, spec.intermediate);
  double* next = scratch.data();
  const auto take = [&](int doubles) { return std::exchange(next, next + doubles); };
  Scratch parts{};
  parts.x = take(spec.hidden);
  double* const x_reach = take(spec.hidden);
  parts.x_reach = x_has_reach ? x_reach : nullptr;
  parts.row = take(widest);
  parts.mid = take(spec.intermediate);
  parts.reach = take(spec.intermediate);
  parts.rounded = take(widest);
  parts.slack = take(widest);
  parts.low = reinterpret_cast<Sum*>(next);
  return parts;
}

}  // namespace

std::size_t scratch_doubles(const ExpertsSpec& spec) {
  return 2 * static_cast<std::size_t>(spec.hidden) + 3 * std::max(spec.hidden, spec.intermediate) +
         2 * static_cast<std::size_t>(spec.intermediate) +
         2 * static_cast<std::size_t>(spec.lora_rank) * sizeof(Sum) / sizeof(double);
}

void compute(const Experts& experts, const Token& token, double* y, std::span<double> scratch,
             Observed* observed) {
  const ExpertsSpec& spec = experts.spec;
  const Scratch parts = carve(spec, scratch, token.x_reach != nullptr);
  const bool want_magnitude = observed != nullptr && !observed->magnitude.empty();
  std::fill_n(y, spec.hidden, 0.0);
  if (want_magnitude) std::ranges::fill(observed->magnitude, 0.0);

  for (int slot = 0; slot < token.top_k; ++slot) {
    const std::int32_t id = local_expert(token.ids[slot], experts.expert_map, spec.experts);
    if (id < 0) continue;
    const ExpertWeights& expert = experts.local[static_cast<std::size_t>(id)];
    const double on_input = spec.weight_on_input ? token.weights[slot] : 1;
    const double on_output = spec.weight_on_input ? 1 : token.weights[slot];
    for (int k = 0; k < spec.hidden; ++k) parts.x[k] = on_input * token.x[k];
    if (token.x_reach)
      for (int k = 0; k < spec.hidden; ++k) parts.x_reach[k] = on_input * token.x_reach[k];
    const LoraExpert* const delta = token.lora ? token.lora->delta(token.lora_token, id) : nullptr;
    const double* const mid_reach = want_magnitude ? parts.reach : nullptr;
    const Row x = rounded(token, {.x = parts.x, .reach = parts.x_reach}, spec.hidden, parts);
    middle(spec, {expert, delta}, x, parts, observed);
    if (delta) project(delta->down, parts.mid, mid_reach, parts.low);
    const Row down_row = rounded(token, {.x = parts.mid, .reach = mid_reach}, spec.intermediate, parts);
    for (int o = 0; o < spec.hidden; ++o) {
      Sum sum = product(expert.down, expert.down_bias, o, down_row, parts.row);
      if (delta) add_delta(delta->down, o, parts.low, sum);
      y[o] += on_output * sum.value;
      if (want_magnitude)
        observed->magnitude[static_cast<std::size_t>(o)] +=
            std::abs(on_output) * (sum.magnitude + std::sqrt(sum.spread2));
    }
  }
}

}  // namespace sluice::reference
