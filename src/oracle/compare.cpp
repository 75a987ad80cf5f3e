// SPDX-License-Identifier: Apache-2.0
// The only place that knows how a request meets a capability.
#include <fmt/format.h>

#include <set>

#include "oracle/oracle.h"

namespace sluice {
namespace {

/// Collects misses. Each says what was wanted, what is offered, and the sentence a person reads.
class Misses {
 public:
  explicit Misses(std::vector<Miss>& misses) : misses_(misses) {}

  void need(bool ok, Miss miss) {
    if (!ok) misses_.push_back(std::move(miss));
  }

  template <class Tag>
  void member(std::string_view trait, Name<Tag> wanted, NameSet<Tag> offered) {
    const std::string set = "{" + (offered.empty() ? std::string() : offered.str()) + "}";
    need(offered.has(wanted), {std::string(trait), std::string(wanted.str()), set,
                               fmt::format("{} is not in {}", wanted.str(), set)});
  }

  void multiple(std::string_view trait, int wanted, int of) {
    need(wanted % of == 0, {std::string(trait), std::to_string(wanted), fmt::format("multiples of {}", of),
                            fmt::format("{} is not a multiple of {}", wanted, of)});
  }

 private:
  std::vector<Miss>& misses_;
};

void compare_device(const Capability& can, const DeviceFacts& device, Misses& misses) {
  const bool same_kind = can.device == device.kind;
  const std::string offered(can.device.str());
  misses.need(same_kind, {"device", std::string(device.kind.str()), offered, "runs on " + offered});
  if (!same_kind) return;  // the instructions of another kind of device would say nothing
  const Instructions absent = can.uses.minus(device.has);
  misses.need(absent.empty(), {"instructions", can.uses.str(), device.has.str(),
                               fmt::format("{} lacks {}", device.name, absent.str())});
}

/// Of the integer formats that the backend has; of others it has no groups to offer.
void compare_groups(const Capability& can, const std::vector<FormatGroup>& groups_of_experts,
                    Misses& misses) {
  const IntegerGroups& groups = can.integer_groups;
  const std::string offered = "{" + words(groups) + "}";
  std::set<int> wanted;
  const auto add = [&](Format format, const Grouping& grouping) {
    if (is_integer(format) && can.weights.has(format)) wanted.insert(grouping.columns);
  };
  for (const FormatGroup& group : groups_of_experts) {
    const MatrixFormats& formats = group.spec.formats;
    if (formats.gate) add(*formats.gate, formats.gate_grouping);
    add(formats.up, formats.up_grouping);
    add(formats.down, formats.down_grouping);
  }
  for (const int columns : wanted) {
    const bool fits = columns == 0 ? groups.whole_row : groups.multiple > 0 && columns % groups.multiple == 0;
    const std::string text = columns == 0 ? "whole rows" : std::to_string(columns);
    misses.need(fits, {"group", text, offered, fmt::format("{} is not in {}", text, offered)});
  }
}

/// `wanted` are the features these experts ask for.
void compare_experts(const Capability& can, const ExpertsSpec& spec, FeatureSet wanted, Misses& misses) {
  const std::vector<FormatGroup> groups = format_groups(spec);
  NameSet<struct FormatTag> formats;
  for (const FormatGroup& group : groups) {
    const MatrixFormats& its = group.spec.formats;
    formats.add(its.gate.value_or(its.up)).add(its.up).add(its.down);
  }
  formats.each([&](Format format) { misses.member("weights", format, can.weights); });
  compare_groups(can, groups, misses);
  misses.member("activation", spec.activation, can.activations);
  const FeatureSet lacking = wanted.minus(can.features);
  misses.need(lacking.empty(), {"features", wanted.str(), can.features.str(), "has no " + lacking.str()});
  misses.multiple("hidden", spec.hidden, can.hidden_multiple);
  misses.multiple("intermediate", spec.intermediate, can.intermediate_multiple);
}

void compare_calls(const Capability& can, const std::vector<CallMode>& calls, Misses& misses) {
  for (const CallMode mode : calls) misses.member("calls", mode, can.calls);
}

void compare_choice(const Backend& backend, const std::string& by_name, Misses& misses) {
  if (backend.name == by_name) return;
  const std::string name(backend.name);
  if (by_name.empty()) {
    const Accuracy its = backend.can.accuracy;
    const bool rounds = its != Accuracies::of<accuracy::Float32>();
    misses.need(!backend.only_by_name,
                {"choice", "any", "only " + name + " by name",
                 rounds ? fmt::format("not asked for by name, and rounds more than float32 ({})", its.str())
                        : "not asked for by name"});
  } else {
    misses.need(false, {"choice", by_name, name, by_name + " was asked for by name"});
  }
}

void compare_kernels(const Backend& backend, const std::vector<int>& tokens, Misses& misses) {
  if (backend.kernels().empty()) {
    misses.need(false, {"build", "kernels", "none", "its kernels are not in this build"});
    return;
  }
  for (const int count : tokens)
    misses.need(kernel_for(backend, count) != nullptr, {"tokens", std::to_string(count), "other counts",
                                                        fmt::format("no kernel takes {} tokens", count)});
}

}  // namespace

std::vector<Miss> compare(const Backend& backend, const Request& request) {
  std::vector<Miss> found;
  Misses misses(found);
  compare_device(backend.can, request.device, misses);

  const LayerSpec& layer = request.layer;
  FeatureSet wanted = needs(layer.routed);
  if (layer.shared) wanted.add(Features::of<feature::SharedExpert>());
  if (layer.latent) wanted.add(Features::of<feature::Latent>());
  compare_experts(backend.can, layer.routed, wanted, misses);
  if (layer.shared) {
    std::vector<Miss> of_shared;
    Misses shared(of_shared);
    compare_experts(backend.can, layer.shared->experts, needs(layer.shared->experts), shared);
    for (Miss& miss : of_shared) {
      miss.trait = "shared " + miss.trait;
      found.push_back(std::move(miss));
    }
  }

  compare_calls(backend.can, request.calls, misses);
  compare_choice(backend, request.by_name, misses);
  compare_kernels(backend, request.tokens, misses);
  return found;
}

std::string words(const IntegerGroups& groups) {
  std::string text = groups.multiple > 0 ? fmt::format("multiples of {}", groups.multiple) : "";
  if (groups.whole_row) text += text.empty() ? "whole rows" : ", whole rows";
  return text;
}

const Kernel* kernel_for(const Backend& backend, int tokens) {
  for (const Kernel& kernel : backend.kernels())
    if (kernel.tokens.first <= tokens && tokens <= kernel.tokens.last) return &kernel;
  return nullptr;
}

}  // namespace sluice
