// SPDX-License-Identifier: Apache-2.0
// A layer over memory nodes, most of them simulated: the bits are those of the shards, the memory is where
// the kernel says, and the caller is left alone.
#include "sluice/nodes.h"

#include <thread>

#include "testing/synthetic.h"
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using testing::Numbers;

/// Nodes that are all the first memory node, with no processors of their own.
ShardOptions simulated(int nodes, int shards, int threads = 1) {
  return {.nodes = std::vector<MemoryNode>(static_cast<std::size_t>(nodes)),
          .shards = shards,
          .threads = threads};
}

/// small::spec() with numbers drawn for it, and a call of five tokens.
struct Subject {
  explicit Subject(Numbers numbers, std::string name = "reference")
      : spec(small::spec()),
        weights(testing::draw_weights(spec, numbers, 1)),
        call(testing::draw_call(spec, numbers, {.tokens = 5}, 2)),
        backend(std::move(name)) {}

  ShardedLayer layer(const ShardOptions& options) const {
    return {small::plan_for(spec, backend).request, weights, options};
  }
  small::Outputs run(const ShardedLayer& layer) const {
    small::Outputs out(spec, call.hidden.rows);
    std::vector<std::byte> workspace(layer.workspace_bytes(call.hidden.rows));
    layer.run(small::call_of(call, out, workspace));
    return out;
  }

  LayerSpec spec;
  LayerWeights weights;
  testing::DrawnCall call;
  std::string backend;
};

/// With routing given and no gate on the shared expert every number is exact, so parts sum to the whole bit
/// for bit, cut inside groups or not.
TEST(ShardedLayer, IsTheWholeLayer) {
  LayerSpec spec = small::spec();
  spec.shared->sigmoid_gate = false;
  spec.routed.params.limit = spec.shared->experts.params.limit = 64;
  const LayerWeights weights = testing::draw_weights(spec, Numbers::exact, 1);
  const testing::DrawnCall drawn = testing::draw_call(spec, Numbers::exact, {.tokens = 5}, 2);
  const auto results = [&](const auto& layer) {
    small::Outputs out(spec, 5);
    std::vector<std::byte> workspace(layer.workspace_bytes(5));
    LayerCall call = small::call_of(drawn, out, workspace);
    call.routing = drawn.routing(spec.routed.top_k);
    layer.run(call);
    return out;
  };
  const Plan plan = small::plan_for(spec);
  const small::Outputs whole = results(Layer(plan, weights));
  for (const int shards : {1, 2, 3, 5})
    EXPECT_TRUE(results(ShardedLayer(plan.request, weights, simulated(1, shards))) == whole) << shards;
}

/// What the processor's best backend gives, where sums round: the cut decides the bits, nodes and threads do
/// not.
TEST(ShardedLayer, HasTheSameBitsForAnyNumberOfNodes) {
  const Subject subject(Numbers::noisy, "");
  for (const int shards : {4, 5}) {
    const small::Outputs one = subject.run(subject.layer(simulated(1, shards)));
    for (const int nodes : {2, 3, 4})
      for (const int threads : {1, 3})
        EXPECT_TRUE(subject.run(subject.layer(simulated(nodes, shards, threads))) == one)
            << shards << " shards, " << nodes << " nodes, " << threads << " threads";
  }
}

TEST(ShardedLayer, GivesOnlyWhatIsAskedFor) {
  const Subject subject(Numbers::noisy);
  const ShardedLayer layer = subject.layer(simulated(2, 2));
  const small::Outputs all = subject.run(layer);
  small::Outputs some(subject.spec, subject.call.hidden.rows);
  const small::Outputs untouched = some;
  std::vector<std::byte> workspace(layer.workspace_bytes(subject.call.hidden.rows));
  LayerCall call = small::call_of(subject.call, some, workspace);
  call.experts_out = nullptr, call.topk_ids = nullptr, call.topk_weights = nullptr;
  layer.run(call);
  EXPECT_EQ(some.block_out, all.block_out);
  EXPECT_EQ(some.experts_out, untouched.experts_out);
  EXPECT_EQ(some.topk_ids, untouched.topk_ids);
}

TEST(ShardedLayer, CallsFromSeveralThreads) {
  const Subject subject(Numbers::noisy);
  const ShardedLayer layer = subject.layer(simulated(2, 3));
  const small::Outputs one = subject.run(layer);
  std::vector<small::Outputs> got(4, small::Outputs(subject.spec, subject.call.hidden.rows));
  std::vector<std::thread> callers;
  for (small::Outputs& out : got)
    callers.emplace_back([&] {
      for (int i = 0; i < 10; ++i) out = subject.run(layer);
    });
  for (std::thread& caller : callers) caller.join();
  for (const small::Outputs& out : got) EXPECT_TRUE(out == one);
}

LayerSpec large_spec() {
  LayerSpec spec = testing::public_shape("qwen3-30b-a3b", *Format::parse("bf16"));
  spec.routed.hidden = 1024;
  spec.routed.intermediate = 1024;
  spec.routed.experts = spec.routed.local_experts = spec.router.experts = 8;
  return spec;
}

/// 48 MiB of packed weights on the nodes of this machine, as the kernel counts them.
TEST(ShardedLayer, LiesWhereTheKernelSays) {
  const LayerSpec spec = large_spec();
  const auto team = make_thread_team(1);
  LayerWeights weights = testing::synthetic_weights(spec, 1, *team);
  weights.router = {};
  const std::vector<MemoryNode> nodes = memory_nodes();
  const int shards = 2 * static_cast<int>(nodes.size());
  const Request request{.layer = spec, .device = detect()};
  if (choose(request).chosen.empty()) GTEST_SKIP() << "the reference packs nothing";
  const ShardedLayer layer(request, weights, {.nodes = nodes, .shards = shards});
  EXPECT_EQ(memory_nodes().front().cpus, nodes.front().cpus) << "the caller has been pinned";
  ASSERT_EQ(layer.placement().size(), nodes.size());
  std::int64_t packed = 0;
  for (const NodePlacement& placement : layer.placement()) {
    SCOPED_TRACE(placement.node);
    EXPECT_EQ(placement.shards, 2);
    EXPECT_TRUE(placement.pinned);
    packed += placement.packed_bytes;
    if (placement.grown_bytes != 0) {
      EXPECT_GE(placement.grown_bytes, placement.packed_bytes * 9 / 10) << "its weights are elsewhere";
    }
  }
  EXPECT_GE(packed, std::int64_t{48} << 20);
}

TEST(ShardedLayer, WhatCannotBeIsRefused) {
  const Subject subject(Numbers::noisy);
  small::expect_error("bad_shards", [&] { subject.layer({}); });
  small::expect_error("bad_shards", [&] { subject.layer(simulated(3, 2)); });
  small::expect_error("bad_slice", [&] { subject.layer(simulated(1, 40)); });  // the shared one is 32 wide
  small::expect_error("no_backend", [&] {
    Request request = small::plan_for(subject.spec).request;
    request.by_name = "cuda.mma";
    ShardedLayer(request, subject.weights, simulated(2, 2));
  });
  small::expect_error("sharded_latent", [] {
    const LayerSpec spec = small::latent_spec();
    ShardedLayer(small::plan_for(spec).request, testing::draw_weights(spec, Numbers::noisy, 1),
                 simulated(2, 2));
  });

  const ShardedLayer layer = subject.layer(simulated(2, 2));
  small::Outputs out(subject.spec, subject.call.hidden.rows);
  std::vector<std::byte> workspace(layer.workspace_bytes(subject.call.hidden.rows) - 1);
  small::expect_error("workspace_too_small",
                      [&] { layer.run(small::call_of(subject.call, out, workspace)); });
  workspace.resize(workspace.size() + 1);
  LayerCall call = small::call_of(subject.call, out, workspace);
  const LoraAdapter* const adapter = nullptr;
  call.adapters = {&adapter, 1};
  small::expect_error("sharded_adapters", [&] { layer.run(call); });
  call.adapters = {};
  std::vector<float> more(workspace.size() / sizeof(float));
  call.shared_out = more.data();
  small::expect_error("sharded_outputs", [&] { layer.run(call); });
  call.shared_out = nullptr;
  call.latent_out = more.data();
  small::expect_error("sharded_outputs", [&] { layer.run(call); });
  call.latent_out = nullptr;
  call.hidden.width -= 1;
  small::expect_error("bad_hidden", [&] { layer.run(call); });
  call.hidden.width += 1;
  call.hidden.row_stride = 1;  // refused by the parts, on the leaders' threads
  EXPECT_THROW(layer.run(call), Error);
  EXPECT_NO_THROW(layer.run(small::call_of(subject.call, out, workspace))) << "after an error";
}

}  // namespace
}  // namespace sluice
