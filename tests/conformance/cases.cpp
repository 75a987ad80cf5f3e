// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/cases.h"

#include <cmath>
#include <numeric>

namespace sluice::conformance {
namespace {

constexpr FeatureSet kOfIntegers = Features::set<feature::ZeroPoints, feature::ActOrder>();

template <class F>
bool has(FeatureSet features) {
  return features.has(Features::of<F>());
}

/// The parameters that the features ask for. A limit of 64 is one that exact layers exceed too: their gates
/// are 58 and more.
ActivationParams params(FeatureSet features) {
  ActivationParams params;
  if (has<feature::Limit>(features)) params.limit = 64;
  if (has<feature::Slope>(features)) params.slope = 1.702f;
  if (has<feature::Shift>(features)) params.shift = 1;
  if (has<feature::Saturation>(features)) params.situ_beta = 1;  // all of its gates saturate exactly
  return params;
}

/// What the shared expert asks for: the same, but for what only routed experts have, and half the limit, so
/// that the routed experts' cannot stand in for it. Exact gates exceed that one too.
ExpertsSpec shared_of(const LayerSpec& layer) {
  ExpertsSpec spec = layer.routed;
  spec.hidden = layer.hidden();
  spec.experts = spec.local_experts = spec.top_k = 1;
  spec.params.limit /= 2;
  spec.weight_on_input = false;
  spec.others.clear();
  spec.intermediate = spec.formats.down == spec.formats.up ? spec.intermediate : spec.hidden;
  return spec;
}

/// Experts 0 and 3 are plain, expert 2 is plain around an `up` of the others' format.
template <class Formats>
std::vector<OtherFormats> others(const ExpertsSpec& spec, Formats formats_in) {
  const Format bf16 = sluice::Formats::of<format::Bf16>(), f32 = sluice::Formats::of<format::F32>();
  const Format plain = spec.formats.up == bf16 || spec.formats.down == bf16 ? f32 : bf16;
  return {{0, formats_in(plain, plain, plain)},
          {2, formats_in(plain, spec.formats.up, plain)},
          {3, formats_in(plain, plain, plain)}};
}

std::string name_of(const Case& made, Activation activation) {
  return storage_text(made.spec.routed) + " " + std::string(activation.str()) + " " + needs(made.spec).str() +
         " " + std::to_string(made.spec.routed.hidden) + "x" + std::to_string(made.spec.routed.intermediate) +
         (made.spec.latent ? " of " + std::to_string(made.spec.hidden()) : "") +
         (made.spec.latent && made.spec.latent->norm_epsilon ? " normed" : "");
}

/// Five arguments of make_case travel together where cases are listed.
Case with_features(const Capability& can, Format format, Activation activation, FeatureSet features) {
  const std::vector<Format> formats = members(can.weights);
  std::size_t next = 0;
  while (formats[next] != format) ++next;
  return make_case(format, formats[(next + 1) % formats.size()], activation, applicable(features, format));
}

/// Groups of 256 leave a partial one of 32 at the end of a row of gate and up.
constexpr Shape kIntegerShape{.hidden = 288, .intermediate = 96};

void add_integer_cases(const Capability& can, Format format, std::vector<Case>& cases) {
  const FeatureSet sets[] = {{},
                             Features::set<feature::ZeroPoints>(),
                             Features::set<feature::ActOrder>(),
                             Features::set<feature::ZeroPoints, feature::ActOrder>()};
  const IntegerGroups& groups = can.integer_groups;
  auto turn = static_cast<std::size_t>(geometry(format).code_bits);  // other groups get another set a width
  for (const int columns : {32, 16, 64, 128, 256, 0}) {
    const bool declared =
        columns == 0 ? groups.whole_row : groups.multiple > 0 && columns % groups.multiple == 0;
    if (!declared) continue;
    Shape shape = kIntegerShape;
    shape.columns = columns;
    for (std::size_t i = 0; i < (columns == 32 ? std::size(sets) : 1); ++i) {
      const FeatureSet features = sets[turn++ % std::size(sets)];
      if (features.minus(can.features).empty())
        cases.push_back(make_case(format, format, members(can.activations).front(), features, shape));
    }
  }
}

}  // namespace

FeatureSet applicable(FeatureSet features, Activation activation) {
  const activation::Reads reads = Activations::visit(activation, []<class A>() { return A::reads; });
  FeatureSet unread;
  if (!reads.limit) unread.add(Features::of<feature::Limit>());
  if (!reads.slope) unread.add(Features::of<feature::Slope>());
  if (!reads.shift) unread.add(Features::of<feature::Shift>());
  if (!reads.saturation) unread.add(Features::of<feature::Saturation>());
  return features.minus(unread);
}

FeatureSet applicable(FeatureSet features, Format format) {
  return is_integer(format) ? features : features.minus(kOfIntegers);
}

int column_unit(Format format) {
  const format::Geometry& shape = geometry(format);
  if (shape.block_cols > 0) return shape.block_cols;
  if (shape.group_rows == 1 && shape.group_cols > 0) return shape.group_cols;
  return shape.code_bits < 8 && !is_integer(format) ? 2 : 1;
}

Case make_case(Format format, Format other, Activation activation, FeatureSet features, Shape shape) {
  const Format outer_gate = has<feature::MixedGateUp>(features) ? other : format;
  const Format outer_down = has<feature::MixedFormats>(features) ? other : format;
  // GGUF's blocks of 256 columns fit few of the shapes that show what ragged sizes do.
  const int unit = std::lcm(column_unit(format), std::lcm(column_unit(outer_gate), column_unit(outer_down)));
  shape.hidden = (shape.hidden + unit - 1) / unit * unit;
  shape.intermediate = (shape.intermediate + unit - 1) / unit * unit;
  const auto grouping = [&](Format its) {
    return !is_integer(its) ? Grouping{}
                            : Grouping{.columns = shape.columns,
                                       .zero_points = has<feature::ZeroPoints>(features),
                                       .act_order = has<feature::ActOrder>(features)};
  };
  const auto formats_in = [&](Format gate, Format up, Format down) {
    MatrixFormats formats{.gate = gate,
                          .up = up,
                          .down = down,
                          .gate_grouping = grouping(gate),
                          .up_grouping = grouping(up),
                          .down_grouping = grouping(down)};
    if (!is_gated(activation)) {
      formats.gate.reset();
      formats.gate_grouping = {};
    }
    return formats;
  };
  const MatrixFormats formats = formats_in(outer_gate, format, outer_down);
  Case made{.spec = {.routed = {.hidden = shape.hidden,
                                .intermediate = shape.intermediate,
                                .experts = 6,
                                .local_experts = 6,
                                .top_k = 2,
                                .formats = formats,
                                .activation = activation,
                                .params = params(features),
                                .gate_up_bias = has<feature::GateUpBias>(features),
                                .down_bias = has<feature::DownBias>(features),
                                .weight_on_input = has<feature::WeightOnInput>(features),
                                .lora_rank = has<feature::Lora>(features) ? 5 : 0},
                     .router = {.score = *Score::parse("softmax"), .experts = 6, .top_k = 2}}};
  if (has<feature::ExpertMap>(features)) {
    made.spec.routed.local_experts = 4;
    made.expert_map = {2, -1, 0, 3, -1, 1};
  }
  if (has<feature::MixedExperts>(features)) made.spec.routed.others = others(made.spec.routed, formats_in);
  if (has<feature::Latent>(features)) {
    // Wider than the experts' rows by at least what an exact layer's rows need.
    made.spec.latent = LatentSpec{.hidden = shape.hidden + (64 + unit - 1) / unit * unit};
    // Where experts are elsewhere a flat call has a part of the sum, and the norm is one of the whole.
    if (!has<feature::ExpertMap>(features)) made.spec.latent->norm_epsilon = 1e-5f;
  }
  if (has<feature::SharedExpert>(features))
    made.spec.shared = SharedSpec{.experts = shared_of(made.spec), .sigmoid_gate = true};
  made.name = name_of(made, activation);
  return made;
}

std::vector<Case> declared_cases(const Capability& can) {
  std::vector<Case> cases;
  for (const Format format : members(can.weights))
    for (const Activation activation : members(can.activations)) {
      cases.push_back(with_features(can, format, activation, {}));
      cases.push_back(with_features(can, format, activation, applicable(can.features, activation)));
    }
  const std::vector<Format> formats = members(can.weights);
  std::size_t turn = 0;
  for (const Activation activation : members(can.activations))
    applicable(can.features, activation).minus(kOfIntegers).each([&](Feature feature) {
      cases.push_back(
          with_features(can, formats[turn++ % formats.size()], activation, FeatureSet().add(feature)));
    });
  for (const Format format : formats)
    if (is_integer(format)) add_integer_cases(can, format, cases);
  return cases;
}

}  // namespace sluice::conformance
