// SPDX-License-Identifier: Apache-2.0
// The public face of a packed layer.
#include "sluice/layer.h"

#include "engine/packed_layer.h"

namespace sluice {

struct Layer::State {
  PackedLayer layer;
};

Layer::Layer(const Plan& plan, const LayerWeights& weights, LayerOptions options)
    : state_(new State{PackedLayer(plan, weights, std::move(options))}) {}
Layer::Layer(Layer&&) noexcept = default;
Layer& Layer::operator=(Layer&&) noexcept = default;
Layer::~Layer() = default;

const Plan& Layer::plan() const { return state_->layer.plan(); }
std::int64_t Layer::packed_bytes() const { return state_->layer.packed_bytes(); }
CacheReport Layer::cache() const { return state_->layer.cache(); }
std::size_t Layer::workspace_bytes(int tokens) const { return state_->layer.workspace_bytes(tokens); }
void Layer::run(const LayerCall& call) const { state_->layer.run(call); }
std::size_t Layer::rows_workspace_bytes(int rows) const { return state_->layer.rows_workspace_bytes(rows); }
void Layer::run_rows(const ExpertRows& call) const { state_->layer.run_rows(call); }
std::shared_ptr<const DeviceAdapters> Layer::put_adapters(
    std::span<const LoraAdapter* const> adapters) const {
  return state_->layer.put_adapters(adapters);
}
std::size_t Layer::device_workspace_bytes(int tokens) const {
  return state_->layer.device_workspace_bytes(tokens);
}
void Layer::enqueue(const DeviceCall& call) const { state_->layer.enqueue(call); }
std::size_t Layer::device_rows_workspace_bytes(int rows) const {
  return state_->layer.device_rows_workspace_bytes(rows);
}
void Layer::enqueue_rows(const DeviceRows& call) const { state_->layer.enqueue_rows(call); }
void Layer::update_expert(int local, const ExpertWeights& weights, std::shared_ptr<const void> owner) {
  state_->layer.update_expert(local, weights, std::move(owner));
}
void Layer::update_shared(const ExpertWeights& weights, const VectorView& shared_gate,
                          std::shared_ptr<const void> owner) {
  state_->layer.update_shared(weights, shared_gate, std::move(owner));
}
void Layer::update_router(const RouterWeights& weights) { state_->layer.update_router(weights); }
void Layer::update_latent(const LatentWeights& weights) { state_->layer.update_latent(weights); }
void Layer::to_latent(const RowsView& hidden, float* latent, std::span<std::byte> workspace) const {
  state_->layer.to_latent(hidden, latent, workspace);
}
void Layer::from_latent(const float* sums, int tokens, float* output, std::span<std::byte> workspace) const {
  state_->layer.from_latent(sums, tokens, output, workspace);
}

}  // namespace sluice
