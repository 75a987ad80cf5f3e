// SPDX-License-Identifier: Apache-2.0
#include "tests/property/draw_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "testing/draw.h"

namespace sluice::property {
namespace {

using conformance::members;
using conformance::Rank;
using testing::Draw;
using testing::Numbers;

constexpr double kWeights = 1e6;   // of a layer: what draws, encodes and decodes in a tenth of a second
constexpr double kProducts = 3e7;  // of a call, each computed in double once and by the backend some times
constexpr int kExactWidth = 64;    // exact numbers need 24 anchor columns and rows of some terms
constexpr int kExactTopK = 4;      // of testing/drawn_layer.h

class CaseDraw {
 public:
  CaseDraw(const Capability& can, std::uint64_t seed) : can_(can), draw_(seed) {}

  DrawnCase draw() {
    const Format first = members(can_.weights).front();
    DrawnCase made{.layer = {.spec = {.routed = {.formats = {.gate = {}, .up = first, .down = first},
                                                 .activation = one_of(members(can_.activations))},
                                      .router = {.score = *Score::parse("softmax")}}}};
    ExpertsSpec& routed = made.layer.spec.routed;
    made.layout = layout();
    fill(routed);
    routed.experts = routed.local_experts = std::min(log_up_to(200), most_experts(routed));
    routed.top_k = log_up_to(std::min(32, routed.experts));
    sizes(routed);
    made.call = {.tokens = tokens(routed), .dtype = one_of<DType>({DType::bf16, DType::f16, DType::f32})};
    latent(made.layer.spec);
    if (made.layout == Layout::flat) {
      map(made.layer);
      shared(made.layer.spec);
      made.tokens_at_once = coin() ? 0 : 1 + below(made.call.tokens);
    } else {
      made.call.dtype = DType::f32;  // what over_ranks dispatches
      made.ranks = ranks(routed.experts);
    }
    made.layer.spec.router.experts = routed.experts;
    made.layer.spec.router.top_k = routed.top_k;
    const bool wide = std::min({routed.hidden, routed.intermediate, made.layer.spec.hidden()}) >= kExactWidth;
    if (wide && routed.top_k <= kExactTopK && coin()) {
      made.numbers = Numbers::exact;
      make_exact(routed.params);
      if (made.layer.spec.shared) make_exact(made.layer.spec.shared->experts.params);
    }
    made.threads = 1 + below(4);
    if (one_in(3)) made.dropped = draw_.uniform();
    made.layer.name = made.str();
    return made;
  }

 private:
  int below(int bound) { return static_cast<int>(draw_.below(bound)); }
  bool one_in(int times) { return below(times) == 0; }
  bool coin() { return one_in(2); }
  template <class T>
  T one_of(const std::vector<T>& all) {
    return all[static_cast<std::size_t>(below(static_cast<int>(all.size())))];
  }
  /// 1 to `most`, small numbers as likely as large ones.
  int log_up_to(int most) {
    return std::min(most, static_cast<int>(std::exp(draw_.uniform() * std::log(most + 1.0))));
  }
  template <class F>
  bool asks_for() {
    return can_.features.has(Features::of<F>()) && coin();
  }

  Layout layout() {
    std::vector<Layout> all{Layout::flat, Layout::flat};
    if (can_.calls.has(CallModes::of<call::Contiguous>())) all.push_back(Layout::contiguous);
    if (can_.calls.has(CallModes::of<call::Batched>())) all.push_back(Layout::batched);
    return one_of(all);
  }

  Grouping grouping(Format format) {
    if (!is_integer(format)) return {};
    std::vector<int> all;
    if (can_.integer_groups.whole_row) all.push_back(0);
    const int multiple = can_.integer_groups.multiple;
    for (int columns = multiple; multiple > 0 && columns <= 256; columns += multiple)
      if (columns >= 16) all.push_back(columns);
    return {.columns = one_of(all),
            .zero_points = asks_for<feature::ZeroPoints>(),
            .act_order = asks_for<feature::ActOrder>()};
  }

  /// Formats, parameters and biases.
  void fill(ExpertsSpec& spec) {
    const std::vector<Format> formats = members(can_.weights);
    const bool mixed = asks_for<feature::MixedFormats>(), mixed_gate = asks_for<feature::MixedGateUp>();
    MatrixFormats& of = spec.formats;
    of.up = one_of(formats);
    of.up_grouping = grouping(of.up);
    of.down = mixed ? one_of(formats) : of.up;
    of.down_grouping = mixed ? grouping(of.down) : of.up_grouping;
    if (is_gated(spec.activation)) {
      of.gate = mixed_gate ? one_of(formats) : of.up;
      of.gate_grouping = mixed_gate ? grouping(*of.gate) : of.up_grouping;
    }
    const activation::Reads reads = Activations::visit(spec.activation, []<class A>() { return A::reads; });
    ActivationParams& params = spec.params;
    if (reads.limit && asks_for<feature::Limit>())
      params.limit = static_cast<float>(0.5 + 64 * draw_.uniform());
    if (reads.slope && asks_for<feature::Slope>())
      params.slope = static_cast<float>(0.5 + 2 * draw_.uniform());
    if (reads.shift && asks_for<feature::Shift>()) params.shift = static_cast<float>(2 * draw_.uniform() - 1);
    if (reads.saturation && asks_for<feature::Saturation>()) {
      params.situ_beta = static_cast<float>(0.5 + 4 * draw_.uniform());
      if (coin()) params.situ_linear_beta = static_cast<float>(0.5 + 4 * draw_.uniform());
    }
    spec.gate_up_bias = asks_for<feature::GateUpBias>();
    spec.down_bias = asks_for<feature::DownBias>();
    spec.weight_on_input = asks_for<feature::WeightOnInput>();
    if (can_.features.has(Features::of<feature::Lora>()) && one_in(3)) spec.lora_rank = 1 + below(12);
  }

  /// Parameters for which the activation of an exact layer's gates, 0 or 50 and more, is an integer.
  static void make_exact(ActivationParams& params) {
    if (std::isfinite(params.limit)) params.limit = 64;
    if (params.slope != 1) params.slope = 1.702f;
    if (params.shift != 0) params.shift = 1;
    if (std::isfinite(params.situ_beta)) params.situ_beta = 1;
    params.situ_linear_beta = std::numeric_limits<float>::infinity();
  }

  /// Any size up to `most` that is a multiple of `unit`.
  int size(double most, int unit) { return unit * (1 + below(std::max(1, static_cast<int>(most) / unit))); }

  /// So many have weights enough where rows are at least as wide as a block of GGUF.
  static int most_experts(const ExpertsSpec& spec) {
    const double least = 3.0 * column_unit_of_input(spec) * conformance::column_unit(spec.formats.down);
    return std::max(1, static_cast<int>(2 * kWeights / least));
  }

  static int column_unit_of_input(const ExpertsSpec& spec) {
    const int gate = spec.formats.gate ? conformance::column_unit(*spec.formats.gate) : 1;
    return std::lcm(conformance::column_unit(spec.formats.up), gate);
  }

  void sizes(ExpertsSpec& spec) {
    const int wide = column_unit_of_input(spec);
    const double elements = std::min(kWeights / (3.0 * spec.experts), kProducts / (3.0 * spec.top_k));
    spec.hidden = size(std::sqrt(elements) * 1.5, std::lcm(wide, can_.hidden_multiple));
    spec.intermediate =
        size(std::min(700.0, elements / spec.hidden),
             std::lcm(conformance::column_unit(spec.formats.down), can_.intermediate_multiple));
  }

  int tokens(const ExpertsSpec& spec) {
    const double products = 3.0 * spec.hidden * spec.intermediate * spec.top_k;
    return log_up_to(std::clamp(static_cast<int>(kProducts / products), 1, 64));
  }

  /// Some of the experts, in any order.
  void map(conformance::Case& layer) {
    ExpertsSpec& routed = layer.spec.routed;
    if (routed.experts < 2 || !asks_for<feature::ExpertMap>()) return;
    const Rank here = shuffled(routed.experts);
    routed.local_experts = 1 + below(routed.experts - 1);
    layer.expert_map.assign(here.size(), -1);
    // Of latent experts a flat call then has a part of the sum, and the norm is one of the whole.
    if (layer.spec.latent) layer.spec.latent->norm_epsilon.reset();
    for (int i = 0; i < routed.local_experts; ++i)
      layer.expert_map[static_cast<std::size_t>(here[static_cast<std::size_t>(i)])] = i;
  }

  /// A layer that is narrower or wider than its experts' rows.
  void latent(LayerSpec& spec) {
    if (!asks_for<feature::Latent>()) return;
    const int unit = std::lcm(column_unit_of_input(spec.routed), can_.hidden_multiple);
    spec.latent = LatentSpec{.hidden = size(2.0 * spec.routed.hidden, unit)};
    if (coin()) spec.latent->norm_epsilon = static_cast<float>(std::exp2(-20 * draw_.uniform()));
  }

  void shared(LayerSpec& spec) {
    if (!asks_for<feature::SharedExpert>()) return;
    ExpertsSpec experts = spec.routed;
    experts.hidden = spec.hidden();
    experts.experts = experts.local_experts = experts.top_k = 1;
    experts.weight_on_input = false;
    fill(experts);
    experts.weight_on_input = false;
    const int wide = column_unit_of_input(experts);
    // Its rows are as wide as the routed experts': where they do not fit its formats, it has theirs.
    if (experts.hidden % wide != 0) {
      experts.formats = spec.routed.formats;
    }
    experts.intermediate =
        size(300, std::lcm(conformance::column_unit(experts.formats.down), can_.intermediate_multiple));
    spec.shared = SharedSpec{.experts = experts, .sigmoid_gate = coin()};
  }

  Rank shuffled(int experts) {
    Rank all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    for (int i = experts - 1; i > 0; --i)
      std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(below(i + 1))]);
    return all;
  }

  /// Uneven parts of all experts, some of them twice. A rank without experts is no layer, but one whose
  /// experts nobody asks for happens.
  std::vector<Rank> ranks(int experts) {
    std::vector<Rank> made(static_cast<std::size_t>(1 + below(std::min(4, experts))));
    const int count = static_cast<int>(made.size());
    const Rank order = shuffled(experts);
    for (int i = 0; i < experts; ++i) {
      const int first = i < count ? i : below(count);
      made[static_cast<std::size_t>(first)].push_back(order[static_cast<std::size_t>(i)]);
      const int second = below(count);
      if (second != first && one_in(4))
        made[static_cast<std::size_t>(second)].push_back(order[static_cast<std::size_t>(i)]);
    }
    return made;
  }

  const Capability& can_;
  Draw draw_;
};

}  // namespace

std::string DrawnCase::str() const {
  const ExpertsSpec& routed = layer.spec.routed;
  std::string text =
      fmt::format("{} {} {}x{}, {} experts ({} here), top {}, needs {}", storage_text(routed.formats),
                  routed.activation.str(), routed.hidden, routed.intermediate, routed.experts,
                  routed.local_experts, routed.top_k, needs(layer.spec).str());
  if (layer.spec.shared)
    text += fmt::format("; shared {} x{}", storage_text(layer.spec.shared->experts.formats),
                        layer.spec.shared->experts.intermediate);
  if (layer.spec.latent)
    text += fmt::format("; latent of {}{}", layer.spec.hidden(),
                        layer.spec.latent->norm_epsilon ? ", normed" : "");
  if (routed.lora_rank > 0) text += fmt::format("; rank {}", routed.lora_rank);
  const char* const names[] = {"flat", "contiguous", "batched"};
  return text + fmt::format("; {} on {} ranks, {} tokens of {}, {} at once, {} threads, {:.2f} dropped",
                            names[static_cast<std::size_t>(layout)], ranks.size(), call.tokens,
                            sluice::name(call.dtype), tokens_at_once, threads, dropped);
}

DrawnCase draw_case(const Capability& can, std::uint64_t seed) { return CaseDraw(can, seed).draw(); }

}  // namespace sluice::property
