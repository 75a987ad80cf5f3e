// SPDX-License-Identifier: Apache-2.0
// One layer on the memory of several NUMA nodes: cut along its intermediate width, every part packed into the
// memory of a node and run by the processors beside it (docs/scaling.md).
//
//   sluice::ShardedLayer layer({.layer = spec, .device = sluice::detect()}, weights,
//                              {.nodes = sluice::memory_nodes()});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/layer.h"
#include "sluice/plan.h"
#include "sluice/spec.h"

namespace sluice {

/// A node of the machine's memory, and the processors beside it that this process may use. Without processors
/// it stands for any: nothing is pinned. A list that names a node several times simulates a larger machine.
struct MemoryNode {
  int id = 0;
  std::vector<int> cpus = {};
};

/// Those that have processors for this process, by their numbers; a single one with all of them where the
/// system does not say.
std::vector<MemoryNode> memory_nodes();

struct ShardOptions {
  std::vector<MemoryNode> nodes = {};
  /// Parts that the layer is cut into, each of which lives on a node whole. 0: one a node. The bits of the
  /// result depend on this number and not on the nodes.
  int shards = 0;
  /// Of a node; 0: as many as it has processors for this process.
  int threads = 0;
  std::vector<std::int32_t> expert_map = {};  // as LayerOptions
};

/// What a memory node holds of a layer, and what the kernel says of it: /proc/self/numa_maps before and after
/// packing. Other threads that allocate at that time are counted too.
struct NodePlacement {
  int node = 0;
  int shards = 0;
  std::int64_t packed_bytes = 0;  // of its shards
  std::int64_t grown_bytes = 0;   // of this process' own memory on the node; 0 where the kernel does not say
  bool pinned = false;            // its threads run on its processors alone
  bool preferred = false;         // the kernel has taken the wish that they allocate here
};

/// A layer whose parts run at the same time, each on its node, and are then summed in the order of the parts.
class ShardedLayer {
 public:
  /// `request.layer` is the whole layer; every part is planned by itself. Throws invalid_argument without
  /// nodes, with fewer shards than nodes, and as slice and Layer do; unsupported for latent experts.
  ShardedLayer(const Request& request, const LayerWeights& weights, const ShardOptions& options);
  ShardedLayer(ShardedLayer&&) noexcept;
  ShardedLayer& operator=(ShardedLayer&&) noexcept;
  ~ShardedLayer();

  /// Of every shard, in order.
  const std::vector<Plan>& plans() const;
  /// By node.
  const std::vector<NodePlacement>& placement() const;

  /// Bytes for a call of that many tokens. Unlike Layer's, a call with less is refused and not split.
  std::size_t workspace_bytes(int tokens) const;
  /// As Layer::run. The router is on every node and runs there. One call at a time runs, others wait. Throws
  /// unsupported for adapters, which would have to be cut at every call, and for shared_out.
  void run(const LayerCall& call) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
