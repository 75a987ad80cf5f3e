// SPDX-License-Identifier: Apache-2.0
// From a plan and canonical weights to a layer that runs.
#include "engine/packed_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "core/error.h"
#include "engine/identity.h"
#include "engine/memory.h"
#include "oracle/oracle.h"

namespace sluice {
namespace {

const Backend& chosen_backend(const Plan& plan) {
  if (plan.chosen.empty()) throw Unsupported(plan);
  const Backend* backend = find_backend(plan.chosen, backends());
  require(backend != nullptr, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "unknown_backend",
                     .what = fmt::format("the plan chose '{}', which this build does not have", plan.chosen),
                     .todo = "Choose again with this build"};
  });
  const std::vector<DeviceFacts> devices = detect(backend->can.device);
  require(!devices.empty(), ErrorKind::device, [&] {
    return ErrorInfo{.code = "no_device",
                     .what = fmt::format("{} cannot run here", plan.chosen),
                     .why = fmt::format("this machine shows no {} device; the plan was made for {}",
                                        backend->can.device.str(), plan.request.device.name),
                     .todo = "Plan for this machine: Request::device = sluice::detect()"};
  });
  const int index = plan.request.device.index;
  require(index >= 0 && index < std::ssize(devices), ErrorKind::device, [&] {
    return ErrorInfo{.code = "no_device",
                     .what = fmt::format("{} cannot run here", plan.chosen),
                     .why = fmt::format("the plan is for {} device {}, and this machine shows {}",
                                        backend->can.device.str(), index, devices.size()),
                     .todo = "Plan for an entry of sluice::detect(DeviceKind)"};
  });
  const DeviceFacts& here = devices[static_cast<std::size_t>(index)];
  const Instructions absent = backend->can.uses.minus(here.has);
  require(absent.empty(), ErrorKind::device, [&] {
    return ErrorInfo{.code = "missing_instructions",
                     .what = fmt::format("{} cannot run here", plan.chosen),
                     .why = fmt::format("{} lacks {}; the plan was made for {}", here.name, absent.str(),
                                        plan.request.device.name),
                     .todo = "Plan for this machine: Request::device = sluice::detect()"};
  });
  // A plan is a value that a caller may have edited since: what it asks for now must still fit.
  Request now = plan.request;
  now.device = here;
  now.by_name = plan.chosen;
  if (!compare(*backend, now).empty()) throw Unsupported(choose(now));
  return *backend;
}

void check_map(std::span<const std::int32_t> map, const ExpertsSpec& spec, const Backend& backend) {
  const auto bad = [](std::string why) {
    return ErrorInfo{
        .code = "bad_expert_map",
        .what = "the expert map does not fit the layer",
        .why = std::move(why),
        .todo = "Give an entry an expert: the position of its weights, or -1 where they are elsewhere"};
  };
  require(!map.empty() || spec.local_experts == spec.experts, ErrorKind::invalid_argument, [&] {
    return bad(
        fmt::format("{} of {} experts are here, but there is no map", spec.local_experts, spec.experts));
  });
  if (map.empty()) return;
  require(std::ssize(map) == spec.experts, ErrorKind::invalid_argument,
          [&] { return bad(fmt::format("{} entries for {} experts", map.size(), spec.experts)); });
  const auto outside =
      std::ranges::find_if(map, [&](std::int32_t at) { return at < -1 || at >= spec.local_experts; });
  require(outside == map.end(), ErrorKind::invalid_argument, [&] {
    return bad(fmt::format("expert {} is mapped to {}, and {} are here", outside - map.begin(), *outside,
                           spec.local_experts));
  });
  require(backend.can.features.has(Features::of<feature::ExpertMap>()), ErrorKind::unsupported,
          [&] { return bad(fmt::format("{} has no expert_map", backend.name)); });
}

/// Of the processor; a card's backend asks its card.
void check_memory(std::int64_t wanted, const Backend& backend) {
  if (backend.can.device != DeviceKinds::of<device::Cpu>()) return;
  const std::int64_t left = available_memory().value_or(wanted);
  require(wanted <= left, ErrorKind::out_of_memory, [&] {
    return ErrorInfo{
        .code = "does_not_fit",
        .what = fmt::format("packing the layer for {} takes {}, {} are free", backend.name,
                            bytes_text(wanted), bytes_text(left)),
        .why = "the packed weights are held beside the mapped file",
        .todo = "Free memory, raise the container's limit, or keep fewer experts here with an expert map"};
  });
}

/// The routed ones first.
std::vector<PackingJob> packings_of(const LayerSpec& spec, const LayerWeights& weights) {
  std::vector<PackingJob> all;
  for (FormatGroup& group : format_groups(spec.routed)) {
    PackingJob packing{.group = std::move(group), .experts = {}};
    for (const std::int32_t local : packing.group.experts)
      packing.experts.push_back(weights.routed[static_cast<std::size_t>(local)]);
    all.push_back(std::move(packing));
  }
  if (spec.shared)
    all.push_back({.group = {spec.shared->experts, {0}}, .experts = weights.shared, .shared = true});
  return all;
}

/// One of several packings reports as a part of the whole.
Progress part_of(const Progress& whole, std::int64_t before, std::int64_t share, std::int64_t all) {
  if (!whole) return {};
  return [&whole, before, share, all](std::int64_t done, std::int64_t total) {
    const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
    whole(before + static_cast<std::int64_t>(part * static_cast<double>(share)), all);
  };
}

std::unique_ptr<PackedExperts> pack_one(const Backend& backend, const PackInput& input) try {
  return backend.pack(input);
} catch (const std::bad_alloc&) {
  fail(ErrorKind::out_of_memory,
       {.code = "does_not_fit",
        .what = fmt::format("packing the layer for {} takes {}, which the system refused", backend.name,
                            bytes_text(backend.packed_bytes(input.spec))),
        .todo = "Raise the limit on this process, or keep fewer experts here"});
}

}  // namespace

PackedLayer::PackedLayer(const Plan& plan, const LayerWeights& weights, LayerOptions options)
    : plan_(plan), expert_map_(std::move(options.expert_map)), executor_(std::move(options.executor)) {
  const Backend& backend = chosen_backend(plan);
  validate(spec(), weights);
  check_map(expert_map_, spec().routed, backend);
  if (!executor_) executor_ = make_thread_team();
  pack(weights, options);
  if (spec().latent) latent_.emplace(*spec().latent, *weights.latent, *executor_);
  router_ = Router(spec().router, weights.router);
  shared_gate_ = to_floats(weights.shared_gate);
  put_on_device();
}

void PackedLayer::pack(const LayerWeights& weights, const LayerOptions& options) {
  const Backend& backend = *find_backend(plan_.chosen, backends());
  std::vector<PackingJob> packings = packings_of(spec(), weights);
  const std::int64_t all = take_from_cache(packings, weights, options);
  for (PackingJob& packing : packings) {  // what was only looked at, all scales for one, waits for its turn
    packing.release = page_releaser(packing.experts, weights.files);
    if (!packing.release) continue;
    for (std::size_t e = 0; e < packing.experts.size(); ++e) packing.release(static_cast<std::int32_t>(e));
  }
  check_memory(all + (weights.latent ? Latent::bytes_of(*weights.latent) : 0), backend);
  std::int64_t before = 0;
  for (PackingJob& packing : packings) {
    if (packing.packed) continue;
    const std::int64_t share = backend.packed_bytes(packing.group.spec);
    packing.packed = pack_one(backend, {packing.group.spec, packing.experts, weights.owner, *executor_,
                                        part_of(options.progress, before, share, all), packing.release,
                                        plan_.request.device.index});
    before += share;
    to_cache(*packing.packed, packing.place);
  }
  keep(std::move(packings));
}

std::int64_t PackedLayer::take_from_cache(std::vector<PackingJob>& packings, const LayerWeights& weights,
                                          const LayerOptions& options) {
  const Backend& backend = *find_backend(plan_.chosen, backends());
  if (!options.cache.empty() && backend.keeping.version == 0)
    log_.add({.notes = {fmt::format("{} keeps no packed weights; the cache is not used", backend.name)}});
  std::int64_t left = 0;
  for (PackingJob& packing : packings) {
    const PackInput input{packing.group.spec, packing.experts, weights.owner, *executor_, {}};
    packing.place = cache_place(options.cache, backend, input, weights.files);
    packing.packed = from_cache(input, packing.place, options.cache_check);
    if (!packing.packed) left += backend.packed_bytes(packing.group.spec);
  }
  // A cache is keyed by the experts' files; projections are decoded anew, from a file that may be another.
  const bool scaled_latent =
      weights.latent && (weights.latent->in.scales.data || weights.latent->out.scales.data);
  if (weights.check && (left > 0 || scaled_latent)) weights.check();
  return left;
}

void PackedLayer::keep(std::vector<PackingJob> packings) {
  places_.resize(static_cast<std::size_t>(spec().routed.local_experts));
  for (PackingJob& packing : packings) {
    if (packing.shared) {
      shared_ = std::move(packing.packed);
      continue;
    }
    std::vector<std::int32_t>& experts = packing.group.experts;
    for (std::size_t at = 0; at < experts.size(); ++at)
      places_[static_cast<std::size_t>(experts[at])] = {routed_.size(), static_cast<std::int32_t>(at)};
    routed_.push_back({std::move(packing.packed), std::move(experts)});
  }
}

std::int64_t PackedLayer::packed_bytes() const {
  std::int64_t bytes = (shared_ ? shared_->bytes() : 0) + (latent_ ? latent_->bytes() : 0);
  for (const PackedGroup& group : routed_) bytes += group.packed->bytes();
  return bytes;
}

}  // namespace sluice
