// SPDX-License-Identifier: Apache-2.0
// A layer over nodes: parts are packed by the leader of their node, run at the same time, and summed in their
// order. Which node a part lives on is in no sum, so the bits are those of the number of parts.
#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/nodes.h"
#include "engine/node_team.h"
#include "engine/places.h"
#include "sluice/nodes.h"
#include "sluice/slice.h"

namespace sluice {
namespace {

/// Results of one part, [tokens, hidden], and the part's own workspace. Bytes from the aligned start.
struct PartPlaces {
  std::size_t experts_out = 0, block_out = 0, workspace = 0, workspace_bytes = 0;
};

void check(const LayerSpec& spec, const ShardOptions& options, int shards) {
  require(!options.nodes.empty() && shards >= static_cast<int>(options.nodes.size()),
          ErrorKind::invalid_argument, [&] {
            return ErrorInfo{.code = "bad_shards",
                             .what = std::to_string(shards) + " shards cannot live on " +
                                     std::to_string(options.nodes.size()) + " memory nodes",
                             .why = "every node holds one shard or more, and there must be a node",
                             .todo = "Give memory_nodes(), and as many shards as nodes or a multiple"};
          });
  require(!spec.latent, ErrorKind::unsupported, [] {
    return ErrorInfo{.code = "sharded_latent",
                     .what = "a sharded layer takes no latent experts",
                     .why = "their sums would have to meet before the norm and the projection behind them",
                     .todo = "Use a Layer, or slices with a Layer a shard (sluice/slice.h)"};
  });
}

/// What the parts cannot see. Of results of another width than the experts' nothing would be summed right.
void check(const LayerCall& call, const LayerSpec& spec, std::size_t workspace_bytes) {
  require(call.adapters.empty(), ErrorKind::unsupported, [] {
    return ErrorInfo{.code = "sharded_adapters",
                     .what = "a sharded layer takes no adapters",
                     .why = "an adapter would have to be cut for every shard at every call",
                     .todo = "Use a Layer, or slices of the adapter with a Layer a shard (sluice/slice.h)"};
  });
  require(!call.latent_out && !call.shared_out, ErrorKind::unsupported, [] {
    return ErrorInfo{.code = "sharded_outputs",
                     .what = "a sharded layer gives neither latent_out nor shared_out",
                     .why = "of what shards give, only experts_out and block_out are summed",
                     .todo = "Use a Layer, or slices with a Layer a shard (sluice/slice.h)"};
  });
  require(call.hidden.width == spec.routed.hidden, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "bad_hidden",
                     .what = "hidden: rows of " + std::to_string(call.hidden.width) + " numbers",
                     .why = "the experts' are " + std::to_string(spec.routed.hidden) + " wide",
                     .todo = "Give rows of that width; other rows than the experts' are not sharded"};
  });
  require(call.workspace.size() >= workspace_bytes, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "workspace_too_small",
                     .what = "the workspace is too small for the call",
                     .why = std::to_string(call.workspace.size()) + " bytes given, " +
                            std::to_string(workspace_bytes) +
                            " needed; a sharded layer does not split its calls",
                     .todo = "Give workspace_bytes(tokens)"};
  });
}

std::int64_t bytes_of(const std::vector<std::int64_t>& by_node, int node) {
  return static_cast<std::size_t>(node) < by_node.size() ? by_node[static_cast<std::size_t>(node)] : 0;
}

}  // namespace

struct ShardedLayer::State {
  NodeTeam team;
  LayerSpec spec;
  std::vector<std::unique_ptr<Layer>> parts;
  std::vector<Plan> plans = {};
  std::vector<NodePlacement> placement = {};

  int nodes() const { return static_cast<int>(team.members().size()); }
  int shards() const { return static_cast<int>(parts.size()); }
  /// The first part of a node; parts up to the next node's first are its own.
  int first_part(int node) const { return shards() * node / nodes(); }

  void pack(const Request& request, const LayerWeights& weights, const ShardOptions& options);
  void place(const std::vector<std::int64_t>& before, const std::vector<std::int64_t>& after);
  std::size_t lay_out(int tokens, int part, std::size_t start, PartPlaces& places) const;
  void run_part(const LayerCall& call, int part, const PartPlaces& places) const;
  template <class Results>
  void sum(float* output, std::size_t count, Results&& results);
};

/// Every node packs its own, so that its threads touch the memory first.
void ShardedLayer::State::pack(const Request& request, const LayerWeights& weights,
                               const ShardOptions& options) {
  const std::vector<std::int64_t> before = own_bytes_by_node();
  team.each([&](int node) {
    for (int p = first_part(node); p < first_part(node + 1); ++p) {
      const LayerSlice mine = slice(spec, weights, even_share(spec, p, shards()));
      Request its = request;
      its.layer = mine.spec;
      parts[static_cast<std::size_t>(p)] = std::make_unique<Layer>(
          choose(its), mine.weights,
          LayerOptions{.expert_map = options.expert_map,
                       .executor = team.members()[static_cast<std::size_t>(node)].executor});
    }
  });
  place(before, own_bytes_by_node());
  for (const auto& part : parts) plans.push_back(part->plan());
}

/// Nodes that are named more than once are one here: the kernel knows them as one.
void ShardedLayer::State::place(const std::vector<std::int64_t>& before,
                                const std::vector<std::int64_t>& after) {
  for (int n = 0; n < nodes(); ++n) {
    const NodeTeam::Member& member = team.members()[static_cast<std::size_t>(n)];
    const int id = member.node.id;
    auto at = std::find_if(placement.begin(), placement.end(),
                           [&](const NodePlacement& known) { return known.node == id; });
    if (at == placement.end())
      at = placement.insert(at, {.node = id,
                                 .grown_bytes = bytes_of(after, id) - bytes_of(before, id),
                                 .pinned = true,
                                 .preferred = true});
    at->pinned = at->pinned && member.pinned;
    at->preferred = at->preferred && member.preferred;
    for (int p = first_part(n); p < first_part(n + 1); ++p) {
      at->shards += 1;
      at->packed_bytes += parts[static_cast<std::size_t>(p)]->packed_bytes();
    }
  }
}

/// Returns the end of the part's places.
std::size_t ShardedLayer::State::lay_out(int tokens, int part, std::size_t start, PartPlaces& at) const {
  const std::size_t numbers = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(spec.routed.hidden);
  Places places(start);
  at.experts_out = places.take<float>(numbers);
  at.block_out = places.take<float>(numbers);
  at.workspace_bytes = parts[static_cast<std::size_t>(part)]->workspace_bytes(tokens);
  at.workspace = places.take_bytes(at.workspace_bytes);
  return places.end();
}

void ShardedLayer::State::run_part(const LayerCall& call, int part, const PartPlaces& places) const {
  // Not a copy: what a shard gives is no result of the layer but where it is summed below.
  LayerCall its{.hidden = call.hidden,
                .routing = call.routing,
                .router_logits = call.router_logits,
                .token_ids = call.token_ids};
  if (call.experts_out) its.experts_out = sluice::place<float>(call.workspace, places.experts_out);
  if (call.block_out) its.block_out = sluice::place<float>(call.workspace, places.block_out);
  if (part == 0) its.topk_ids = call.topk_ids, its.topk_weights = call.topk_weights;
  its.workspace = {sluice::place<std::byte>(call.workspace, places.workspace), places.workspace_bytes};
  parts[static_cast<std::size_t>(part)]->run(its);
}

/// `results(part)` is where a part's numbers begin. Nodes and their threads share the numbers.
template <class Results>
void ShardedLayer::State::sum(float* output, std::size_t count, Results&& results) {
  team.each([&](int node) {
    Executor& executor = *team.members()[static_cast<std::size_t>(node)].executor;
    const auto tasks = static_cast<std::size_t>(executor.workers());
    const auto cut = [&](std::size_t task) {
      const std::size_t all = tasks * static_cast<std::size_t>(nodes());
      return count * (static_cast<std::size_t>(node) * tasks + task) / all;
    };
    parallel_for(executor, executor.workers(), [&](int task, int) {
      const auto t = static_cast<std::size_t>(task);
      const std::size_t first = cut(t), last = cut(t + 1);
      std::copy(results(0) + first, results(0) + last, output + first);
      for (int part = 1; part < shards(); ++part) {
        const float* const more = results(part);
        for (std::size_t i = first; i < last; ++i) output[i] += more[i];
      }
    });
  });
}

ShardedLayer::ShardedLayer(const Request& request, const LayerWeights& weights, const ShardOptions& options) {
  const int shards = options.shards != 0 ? options.shards : static_cast<int>(options.nodes.size());
  check(request.layer, options, shards);
  state_.reset(new State{.team{options.nodes, options.threads},
                         .spec = request.layer,
                         .parts = std::vector<std::unique_ptr<Layer>>(static_cast<std::size_t>(shards))});
  state_->pack(request, weights, options);
}

ShardedLayer::ShardedLayer(ShardedLayer&&) noexcept = default;
ShardedLayer& ShardedLayer::operator=(ShardedLayer&&) noexcept = default;
ShardedLayer::~ShardedLayer() = default;

const std::vector<Plan>& ShardedLayer::plans() const { return state_->plans; }
const std::vector<NodePlacement>& ShardedLayer::placement() const { return state_->placement; }

std::size_t ShardedLayer::workspace_bytes(int tokens) const {
  std::size_t end = kAlign;  // for the start, which need not be aligned
  PartPlaces places;
  for (int part = 0; part < state_->shards(); ++part) end = state_->lay_out(tokens, part, end, places);
  return end;
}

void ShardedLayer::run(const LayerCall& call) const {
  const int tokens = std::max(call.hidden.rows, 0);
  check(call, state_->spec, workspace_bytes(tokens));
  State& state = *state_;
  const auto places_of = [&](int part) {
    PartPlaces places;
    std::size_t start = 0;
    for (int p = 0; p <= part; ++p) start = state.lay_out(tokens, p, start, places);
    return places;
  };
  state.team.each([&](int node) {
    for (int part = state.first_part(node); part < state.first_part(node + 1); ++part)
      state.run_part(call, part, places_of(part));
  });
  const std::size_t numbers =
      static_cast<std::size_t>(tokens) * static_cast<std::size_t>(state.spec.routed.hidden);
  if (call.experts_out)
    state.sum(call.experts_out, numbers,
              [&](int part) { return place<float>(call.workspace, places_of(part).experts_out); });
  if (call.block_out)
    state.sum(call.block_out, numbers,
              [&](int part) { return place<float>(call.workspace, places_of(part).block_out); });
}

}  // namespace sluice
