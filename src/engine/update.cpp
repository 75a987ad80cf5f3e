// SPDX-License-Identifier: Apache-2.0
// Live update: parts of a packed layer replaced in place. Everything is checked before anything is written.
#include <algorithm>
#include <string>

#include "core/error.h"
#include "engine/packed_layer.h"
#include "engine/validate_parts.h"

namespace sluice {

void PackedLayer::check_planned() const {
  const CallMode mode = CallModes::of<call::Update>();
  const std::vector<CallMode>& asked = plan_.request.calls;
  require(std::ranges::find(asked, mode) != asked.end(), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{
        .code = "not_planned",
        .what = "the layer was not planned for " + std::string(mode.str()),
        .why =
            "a backend has to declare that it replaces weights in place, and was not asked whether it does",
        .todo = "Add the mode to Request::calls before choosing"};
  });
}

/// What a cache had of an expert is of no interest once it has been replaced; when that was refused, it is.
void PackedLayer::forget_cached(const PackedExperts& packed, std::int32_t local) {
  for (const std::unique_ptr<FirstTouch>& touch : first_touches_)
    if (touch->is_of(packed)) touch->replaced(local);
}

void PackedLayer::update_expert(int local, const ExpertWeights& weights, std::shared_ptr<const void> owner) {
  check_planned();
  validate_routed(spec(), local, weights);
  const GroupPlace& at = places_[static_cast<std::size_t>(local)];
  PackedExperts& packed = *routed_[at.group].packed;
  packed.backend.update(packed, {at.local, weights, std::move(owner), *executor_});
  forget_cached(packed, at.local);
}

void PackedLayer::update_shared(const ExpertWeights& weights, const VectorView& shared_gate,
                                std::shared_ptr<const void> owner) {
  check_planned();
  validate_shared(spec(), weights, shared_gate);
  shared_->backend.update(*shared_, {0, weights, std::move(owner), *executor_});
  forget_cached(*shared_, 0);
  assign_floats(shared_gate, shared_gate_);
}

void PackedLayer::update_router(const RouterWeights& weights) {
  check_planned();
  validate_router(spec(), weights);
  require(router_.is_like(weights), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{
        .code = "bad_weights",
        .what = "the weights are not what the layer was made with",
        .tensor = "router",
        .why = "an update has the parts that the layer's router has, and a table of the same size",
        .todo = "Give all of the router, or make a new layer"};
  });
  router_.assign(weights);
}

void PackedLayer::update_latent(const LatentWeights& weights) {
  check_planned();
  check_latent();
  validate_latent(spec(), weights);
  require(latent_->is_like(weights), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "bad_weights",
                     .what = "the weights are not what the layer was made with",
                     .tensor = "latent",
                     .why = "bf16 projections are kept as such and take no others, nor the other way round",
                     .todo = "Give them in the type that they had, or make a new layer"};
  });
  latent_->assign(weights, *executor_);
}

}  // namespace sluice
