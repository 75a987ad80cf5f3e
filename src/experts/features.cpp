// SPDX-License-Identifier: Apache-2.0
// The features that a spec asks for. A new feature is a type in backend.h and a line here; every backend then
// refuses it until it declares it.
#include <cmath>

#include "experts/backend.h"

namespace sluice {

template <>
std::span<const std::string_view> Feature::all() {
  return Features::kNames;
}

template <>
std::span<const std::string_view> Accuracy::all() {
  return Accuracies::kNames;
}

template <>
std::span<const std::string_view> CallMode::all() {
  return CallModes::kNames;
}

namespace {

/// Gate and up are not stored alike.
bool gate_differs(const MatrixFormats& formats) {
  return formats.gate && (*formats.gate != formats.up || formats.gate_grouping != formats.up_grouping);
}

bool down_differs(const MatrixFormats& formats) {
  return formats.down != formats.up || formats.down_grouping != formats.up_grouping;
}

}  // namespace

FeatureSet needs(const ExpertsSpec& spec) {
  FeatureSet set;
  const auto add = [&set]<class F>(bool wanted, F) {
    if (wanted) set.add(Features::of<F>());
  };
  add(spec.gate_up_bias, feature::GateUpBias{});
  add(spec.down_bias, feature::DownBias{});
  add(std::isfinite(spec.params.limit), feature::Limit{});
  add(spec.params.slope != 1.0f, feature::Slope{});
  add(spec.params.shift != 0.0f, feature::Shift{});
  add(std::isfinite(spec.params.situ_beta) || std::isfinite(spec.params.situ_linear_beta),
      feature::Saturation{});
  add(spec.local_experts != spec.experts, feature::ExpertMap{});
  add(spec.weight_on_input, feature::WeightOnInput{});
  const std::vector<FormatGroup> groups = format_groups(spec);
  add(groups.size() > 1, feature::MixedExperts{});
  for (const FormatGroup& group : groups) {
    const MatrixFormats& formats = group.spec.formats;
    add(down_differs(formats), feature::MixedFormats{});
    add(gate_differs(formats), feature::MixedGateUp{});
    for (const Grouping& grouping : {formats.gate_grouping, formats.up_grouping, formats.down_grouping}) {
      add(grouping.zero_points, feature::ZeroPoints{});
      add(grouping.act_order, feature::ActOrder{});
    }
  }
  add(spec.lora_rank != 0, feature::Lora{});
  return set;
}

FeatureSet needs(const LayerSpec& spec) {
  FeatureSet set = needs(spec.routed);
  if (spec.shared) set = set.plus(needs(spec.shared->experts)).add(Features::of<feature::SharedExpert>());
  if (spec.latent) set.add(Features::of<feature::Latent>());
  return set;
}

}  // namespace sluice
