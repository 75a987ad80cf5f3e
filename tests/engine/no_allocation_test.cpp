// SPDX-License-Identifier: Apache-2.0
// The forward call allocates nothing, on any thread, for any backend. This file replaces the program's
// operator new by one that counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "sluice/nodes.h"
#include "testing/drawn_lora.h"
#include "testing/rounding.h"
#include "testing/usable_backends.h"
#include "tests/engine/scratch_folder.h"
#include "tests/engine/small_layer.h"

namespace {

std::atomic<std::int64_t> allocations = 0;
std::atomic<std::size_t> largest = 0;  // since it was last set to 0

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  for (std::size_t seen = largest; bytes > seen && !largest.compare_exchange_weak(seen, bytes);) {
  }
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Not inlined: g++ 12 would see a free() of what operator new returned, and call it a mismatch.
[[gnu::noinline]] void release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace sluice {
namespace {

TEST(NoAllocation, TheCounterCounts) {
  const std::int64_t before = allocations;
  const std::vector<int> something(1000);
  EXPECT_GT(allocations, before);
}

/// All that a backend may have; of one that does not take the formats all but the experts in others.
LayerSpec spec_for(const Backend& backend) {
  LayerSpec spec = small::latent_spec();
  spec.routed.lora_rank = spec.shared->experts.lora_rank = 4;
  spec.routed.others = {{1, spec.shared->experts.formats}, {6, spec.shared->experts.formats}};
  if (testing::rounding_of(backend.name) == testing::Rounding::none) return spec;
  spec.routed.others.clear();
  spec.shared.reset();
  return spec;
}

TEST(NoAllocation, ForwardOfEveryBackend) {
  for (const Backend* backend : testing::usable_backends(Features::set<feature::Lora, feature::Latent>())) {
    const LayerSpec spec = spec_for(*backend);
    const LayerWeights weights = testing::draw_weights(spec, testing::Numbers::noisy, 1);
    const Layer layer(small::plan_for(spec, std::string(backend->name)), weights,
                      {.executor = make_thread_team(2)});
    for (const int tokens : {0, 1, 3, 40}) {
      const testing::DrawnCall drawn = draw_call(spec, testing::Numbers::noisy, {.tokens = tokens}, 2);
      small::Outputs out(spec, tokens);
      std::vector<std::byte> workspace(layer.workspace_bytes(tokens == 40 ? 7 : tokens));  // 40 are split
      const testing::DrawnLora lora = draw_lora(spec, testing::Numbers::noisy, tokens, 3);
      const std::vector<const LoraAdapter*> adapters = lora.pointers();
      LayerCall call = small::call_of(drawn, out, workspace);
      call.adapters = adapters;
      call.adapter_ids = lora.ids;
      const std::int64_t before = allocations;
      for (int round = 0; round < 3; ++round) layer.run(call);
      EXPECT_EQ(allocations, before) << backend->name << ", " << tokens << " tokens";
    }
  }
}

TEST(NoAllocation, ForwardOverNodes) {
  const LayerSpec spec = small::spec();
  const LayerWeights weights = testing::draw_weights(spec, testing::Numbers::noisy, 1);
  const ShardedLayer layer(small::plan_for(spec, "").request, weights,
                           {.nodes = std::vector<MemoryNode>(2), .shards = 3, .threads = 2});
  const testing::DrawnCall drawn = draw_call(spec, testing::Numbers::noisy, {.tokens = 3}, 2);
  small::Outputs out(spec, 3);
  std::vector<std::byte> workspace(layer.workspace_bytes(3));
  const LayerCall call = small::call_of(drawn, out, workspace);
  const std::int64_t before = allocations;
  for (int round = 0; round < 3; ++round) layer.run(call);
  EXPECT_EQ(allocations, before);
}

/// The first calls look at what the cache had.
TEST(NoAllocation, FirstCallsOfALayerFromACache) {
  const LayerSpec spec = small::spec();
  const LayerWeights weights = testing::draw_weights(spec, testing::Numbers::noisy, 1);
  for (const Backend* backend : testing::usable_backends()) {
    if (backend->keeping.version == 0) continue;
    if (testing::rounding_of(backend->name) != testing::Rounding::none &&
        small::plan_for(spec, std::string(backend->name)).chosen.empty())
      continue;  // the shared expert's format
    const testing::ScratchFolder cache;
    const auto load = [&] {
      return Layer(small::plan_for(spec, std::string(backend->name)), weights,
                   {.executor = make_thread_team(2), .cache = cache.path()});
    };
    (void)load();
    const Layer layer = load();
    ASSERT_EQ(layer.cache().loaded, 2);
    const testing::DrawnCall drawn = draw_call(spec, testing::Numbers::noisy, {.tokens = 5}, 2);
    small::Outputs out(spec, 5);
    std::vector<std::byte> workspace(layer.workspace_bytes(2));
    const LayerCall call = small::call_of(drawn, out, workspace);
    const std::int64_t before = allocations;
    layer.run(call);
    EXPECT_EQ(allocations, before) << backend->name;
  }
}

/// Names for messages, and nothing as large as a matrix.
TEST(NoAllocation, LiveUpdateAllocatesNoWeights) {
  const LayerSpec spec = small::latent_spec();
  const LayerWeights weights = testing::draw_weights(spec, testing::Numbers::noisy, 1);
  for (const Backend* backend : testing::usable_backends(Features::set<feature::Latent>())) {
    const Plan plan = choose({.layer = spec,
                              .device = detect(),
                              .by_name = std::string(backend->name),
                              .calls = {CallModes::of<call::Update>()}});
    if (testing::rounding_of(backend->name) != testing::Rounding::none && plan.chosen.empty())
      continue;  // the shared expert's format
    Layer layer(plan, weights, {.executor = make_thread_team(2)});
    largest = 0;
    layer.update_expert(3, weights.routed[5], weights.owner);
    layer.update_shared(weights.shared[0], weights.shared_gate, weights.owner);
    layer.update_router(weights.router);
    layer.update_latent(*weights.latent);
    EXPECT_LT(largest, std::size_t{256}) << backend->name;
  }
}

}  // namespace
}  // namespace sluice
