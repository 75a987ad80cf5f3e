// SPDX-License-Identifier: Apache-2.0
// What stands behind sluice::Layer: routed and shared experts packed by one backend, the router, and the
// forward call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/first_touch.h"
#include "engine/latent.h"
#include "engine/router.h"
#include "experts/backend.h"
#include "sluice/layer.h"

namespace sluice {

/// What a flat call keeps of a layer whose experts differ, a number a slot each: what Forward reads of the
/// slots of one group, and where the slots' results go before they are summed in order.
struct MixedPlaces {
  std::size_t rows = 0, output_rows = 0, ids = 0, weights = 0, adapter_ids = 0;
  std::size_t row_of_slot = 0, results = 0;  // [slots, hidden]
};

/// What latent experts need. `rows` and `decoded` share their place with the kernels, the others are kept.
struct LatentPlaces {
  std::size_t rows = 0, decoded = 0;
  std::size_t projected = 0, sums = 0;  // [tokens, latent]; the norm writes where the projected rows were
};

/// Where the parts of a workspace lie, in bytes from an aligned start. The size query and the forward call
/// both read this, so they cannot disagree.
struct WorkspaceLayout {
  // The first place is used in turn: by the router, then by the routed experts' kernel, then by the shared
  // expert's.
  std::size_t router_rows = 0, logits = 0, top_k = 0;

  std::size_t ids = 0, weights = 0;
  std::size_t shared_ids = 0, shared_weights = 0, shared_out = 0;
  MixedPlaces mixed = {};
  LatentPlaces latent = {};
  std::size_t bytes = 0;  // in all, with what aligning the start may cost
};

/// The same of a call on rows. The kernel's place comes first.
struct RowsLayout {
  std::size_t rows = 0, ids = 0, weights = 0, adapter_ids = 0;
  std::size_t bytes = 0;
};

/// Routed experts that have one set of formats, packed.
struct PackedGroup {
  std::unique_ptr<PackedExperts> packed;
  std::vector<std::int32_t> experts;  // the local positions of those that are packed
};

/// Where a packing is kept; empty strings where it is not.
struct CachePlace {
  std::string path, identity;
};
CachePlace cache_place(const std::string& directory, const Backend& backend, const PackInput& input,
                       std::span<const SourceFile> files);

/// Experts that are packed together: a set of the routed ones, or the shared one.
struct PackingJob {
  FormatGroup group;
  std::vector<ExpertWeights> experts;
  bool shared = false;
  CachePlace place = {};
  std::function<void(std::int32_t)> release = {};
  std::unique_ptr<PackedExperts> packed = {};
};

/// Where a local expert is packed.
struct GroupPlace {
  std::size_t group = 0;
  std::int32_t local = 0;
};

class PackedLayer {
 public:
  PackedLayer(const Plan& plan, const LayerWeights& weights, LayerOptions options);

  const Plan& plan() const { return plan_; }
  std::int64_t packed_bytes() const;
  CacheReport cache() const { return log_.report(); }
  std::size_t workspace_bytes(int tokens) const { return tokens > 0 ? layout(tokens).bytes : 0; }
  void run(const LayerCall& call) const;
  std::size_t rows_workspace_bytes(int rows) const { return rows > 0 ? rows_layout(rows).bytes : 0; }
  void run_rows(const ExpertRows& call) const;

  // device_calls.cpp
  std::shared_ptr<const DeviceAdapters> put_adapters(std::span<const LoraAdapter* const> adapters) const;
  std::size_t device_workspace_bytes(int tokens) const;
  void enqueue(const DeviceCall& call) const;
  std::size_t device_rows_workspace_bytes(int rows) const;
  void enqueue_rows(const DeviceRows& call) const;

  // update.cpp
  void update_expert(int local, const ExpertWeights& weights, std::shared_ptr<const void> owner);
  void update_shared(const ExpertWeights& weights, const VectorView& shared_gate,
                     std::shared_ptr<const void> owner);
  void update_router(const RouterWeights& weights);
  void update_latent(const LatentWeights& weights);

  // latent_calls.cpp
  void to_latent(const RowsView& hidden, float* latent, std::span<std::byte> workspace) const;
  void from_latent(const float* sums, int tokens, float* output, std::span<std::byte> workspace) const;

 private:
  const LayerSpec& spec() const { return plan_.request.layer; }
  void pack(const LayerWeights& weights, const LayerOptions& options);
  /// What is kept is adopted. Returns the bytes of what is left to pack, whose values have been looked at.
  std::int64_t take_from_cache(std::vector<PackingJob>& packings, const LayerWeights& weights,
                               const LayerOptions& options);
  void keep(std::vector<PackingJob> packings);
  // pack_cache.cpp
  std::unique_ptr<PackedExperts> from_cache(const PackInput& input, const CachePlace& at, CacheCheck when);
  void to_cache(const PackedExperts& packed, const CachePlace& at);

  // forward.cpp
  WorkspaceLayout layout(int tokens) const;
  std::size_t kernel_bytes(const PackedExperts& packed, int tokens) const;
  std::size_t routed_bytes(int tokens) const;
  int tokens_at_once(int tokens, std::size_t workspace_bytes) const;
  void run_part(const LayerCall& call) const;
  void run_routed(const LayerCall& call, const WorkspaceLayout& at, const Routing& routing,
                  float* output) const;
  Routing route(const LayerCall& call, const WorkspaceLayout& at) const;
  Routing route_shared(const LayerCall& call, const WorkspaceLayout& at) const;
  void forward(const PackedExperts& packed, const LayerCall& call, const Routing& routing,
               float* output) const;
  void run_kernel(const PackedExperts& packed, int tokens, const Forward& call) const;
  void add_shared(const LayerCall& call, const WorkspaceLayout& at, const float* routed_out) const;

  // latent_calls.cpp
  void check_latent() const;
  void project(const RowsView& hidden, const LatentPlaces& at, std::span<std::byte> workspace,
               float* out) const;
  void project_back(const float* sums, int tokens, const LatentPlaces& at, std::span<std::byte> workspace,
                    float* out) const;
  void run_latent(const LayerCall& call, const WorkspaceLayout& at, const Routing& routing,
                  float* routed_out) const;

  // mixed_experts.cpp
  bool mixed() const { return routed_.size() > 1; }
  int list_slots(const LayerCall& call, const MixedPlaces& at, const Routing& routing,
                 std::size_t group) const;
  void run_groups(const LayerCall& call, const MixedPlaces& at, const Routing& routing, float* output) const;

  // expert_rows.cpp
  int tokens_of(int rows) const;
  RowsLayout rows_layout(int rows) const;
  int rows_at_once(const ExpertRows& call, int used) const;

  // device_calls.cpp
  void put_on_device();
  const DeviceLayer& on_device() const;
  void check_put(const DeviceAdapters* adapters, const std::int32_t* ids) const;
  void check(const DeviceCall& call) const;
  void check(const DeviceRows& call) const;

  // update.cpp
  void check_planned() const;
  void forget_cached(const PackedExperts& packed, std::int32_t local);

  // validate_call.cpp
  void check(const ExpertRows& call) const;
  void check(const LayerCall& call) const;
  static void check_rows(const RowsView& hidden, int width);
  void check_outputs(const LayerCall& call) const;
  void check_routing(const LayerCall& call) const;
  void check_given(const Routing& routing, int tokens) const;
  void check_own_router(bool logits_given) const;
  void check_mode(CallMode mode) const;
  void check_token_ids(const LayerCall& call) const;

  // validate_lora.cpp
  void check_adapters(std::span<const LoraAdapter* const> adapters, std::span<const std::int32_t> ids,
                      int rows) const;
  static void check_adapter_id(std::int32_t id, std::ptrdiff_t row, std::size_t adapters);

  Plan plan_;
  std::vector<std::int32_t> expert_map_;
  std::shared_ptr<Executor> executor_;
  std::vector<PackedGroup> routed_;  // one, but where the experts differ
  std::vector<GroupPlace> places_;   // [local_experts]
  std::unique_ptr<PackedExperts> shared_;
  // Of those packings that were mapped. Behind what they refer to, and so ended before it.
  CacheLog log_;
  std::vector<std::unique_ptr<FirstTouch>> first_touches_;
  Router router_;
  std::vector<float> shared_gate_;
  std::optional<Latent> latent_;
  std::unique_ptr<DeviceLayer> device_;  // null: no calls in a device's memory. Refers to the packings
};

}  // namespace sluice
