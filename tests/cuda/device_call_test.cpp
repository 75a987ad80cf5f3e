// SPDX-License-Identifier: Apache-2.0
// Layer::enqueue gives the bits of Layer::run, on every backend of a card: every declared format, activation
// and feature, every type of input, ids or logits or nothing given, whole and in parts, in a graph; and it
// refuses what it should.
#include <algorithm>
#include <array>

#include "testing/draw.h"
#include "tests/conformance/judge.h"
#include "tests/cuda/device_call.h"
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using conformance::Case;
using conformance::Problem;
using on_card::CardCall;
using on_card::From;
using on_card::Results;
using on_card::run_on_host;
using testing::Numbers;

class DeviceCallTest : public on_card::BackendTest {};

constexpr std::array kTypes = {DType::bf16, DType::f16, DType::f32};

LayerCall host_call(const testing::DrawnCall& drawn, int top_k) {
  return {.hidden = drawn.hidden, .routing = drawn.routing(top_k)};
}

TEST_P(DeviceCallTest, EverythingDeclaredWithGivenIds) {
  std::size_t index = 0;
  for (const Case& made : conformance::declared_cases(backend().can)) {
    const DType dtype = kTypes[index++ % kTypes.size()];
    const Problem problem(made, Numbers::noisy, {.tokens = 7, .dtype = dtype}, index);
    const Layer layer = problem.layer(backend());
    const LayerCall call = host_call(problem.call(), made.spec.routed.top_k);
    CardCall on_card(layer, call);
    expect_same(on_card.run(), run_on_host(layer, call), made.name + ", " + std::string(name(dtype)));
  }
}

std::vector<float> draw_logits(int tokens, int experts) {
  testing::Draw draw(5);
  return draw.normals(std::int64_t{tokens} * experts, 2.0);
}

TEST_P(DeviceCallTest, TheLayersOwnRouterAndGivenLogits) {
  const LayerSpec spec = small_spec();
  const LayerWeights weights = draw_weights(spec, Numbers::noisy, 3);
  const Layer layer = small_layer(spec, weights);
  for (const DType dtype : kTypes)
    for (const int tokens : {1, 5, 100}) {
      const testing::DrawnCall drawn = draw_call(spec, Numbers::noisy, {.tokens = tokens, .dtype = dtype}, 9);
      LayerCall call{.hidden = drawn.hidden};
      const std::string what = std::string(name(dtype)) + ", " + std::to_string(tokens) + " tokens";
      expect_same(CardCall(layer, call).run(), run_on_host(layer, call), what + ", its own router");
      const std::vector<float> logits = draw_logits(tokens, spec.routed.experts);
      call.router_logits = logits;
      expect_same(CardCall(layer, call).run(), run_on_host(layer, call), what + ", logits");
    }
}

TEST_P(DeviceCallTest, EveryScoreWithAMapAndManyTokens) {
  for (const std::string_view score : Score::all()) {
    LayerSpec spec = small_spec();
    spec.router.score = *Score::parse(score);
    spec.router.groups = 4;
    spec.router.groups_kept = 2;
    spec.routed.local_experts = 5;
    const LayerWeights weights = draw_weights(spec, Numbers::noisy, 4);
    const Layer layer = small_layer(spec, weights, {3, -1, 0, 1, -1, 4, 2, -1});
    const testing::DrawnCall drawn = draw_call(spec, Numbers::noisy, {.tokens = 300}, 9);
    const LayerCall call{.hidden = drawn.hidden};
    expect_same(CardCall(layer, call).run(), run_on_host(layer, call), std::string(score));
  }
}

TEST_P(DeviceCallTest, ByTokenId) {
  LayerSpec spec = small_spec();
  spec.router.by_token_id = true;
  spec.router.selection_bias = false;
  const LayerWeights weights = draw_weights(spec, Numbers::noisy, 3);
  const Layer layer = small_layer(spec, weights);
  const testing::DrawnCall drawn = draw_call(spec, Numbers::noisy, {.tokens = 9}, 9);
  const LayerCall call{.hidden = drawn.hidden, .token_ids = drawn.token_ids};
  expect_same(CardCall(layer, call).run(), run_on_host(layer, call), "by token id");
}

TEST_P(DeviceCallTest, InPartsAndWithSomeOutputs) {
  const LayerSpec spec = small_spec();
  const LayerWeights weights = draw_weights(spec, Numbers::noisy, 3);
  const Layer layer = small_layer(spec, weights);
  const testing::DrawnCall drawn = draw_call(spec, Numbers::noisy, {.tokens = 11}, 9);
  const LayerCall call{.hidden = drawn.hidden};
  const Results want = run_on_host(layer, call);
  for (const int at_once : {1, 4})
    expect_same(CardCall(layer, call, at_once).run(), want, std::to_string(at_once) + " at once");
  CardCall block(layer, call);
  block.call().experts_out = block.call().shared_out = block.call().topk_weights = nullptr;
  block.call().topk_ids = nullptr;
  EXPECT_TRUE(on_card::same_bits(block.run().block_out, want.block_out));
  CardCall experts(layer, call);
  experts.call().block_out = experts.call().shared_out = nullptr;
  EXPECT_TRUE(on_card::same_bits(experts.run().experts_out, want.experts_out));
  CardCall shared(layer, call);
  shared.call().block_out = shared.call().experts_out = nullptr;
  EXPECT_TRUE(on_card::same_bits(shared.run().shared_out, want.shared_out));
}

/// A workspace for many tokens is one for fewer, whichever kernels those take.
TEST_P(DeviceCallTest, TheWorkspaceGrowsWithTheTokens) {
  const LayerSpec spec = small_spec();
  const Layer layer = small_layer(spec, draw_weights(spec, Numbers::noisy, 3));
  std::size_t before = 0;
  for (int tokens = 1; tokens <= 200; ++tokens) {
    const std::size_t bytes = layer.device_workspace_bytes(tokens);
    EXPECT_GE(bytes, before) << tokens << " tokens";
    before = bytes;
  }
}

TEST_P(DeviceCallTest, AGraphReplayedOnOtherNumbers) {
  const LayerSpec spec = small_spec();
  const LayerWeights weights = draw_weights(spec, Numbers::noisy, 3);
  const Layer layer = small_layer(spec, weights);
  const testing::DrawnCall first = draw_call(spec, Numbers::noisy, {.tokens = 20}, 9),
                           second = draw_call(spec, Numbers::noisy, {.tokens = 20}, 10);
  CardCall on_card(layer, {.hidden = first.hidden});
  const on_card::Stream stream;
  const on_card::Graph graph(on_card, stream.get());
  for (const testing::DrawnCall* drawn : {&first, &second, &first}) {
    on_card.poison();
    on_card.write_hidden(drawn->rows);
    on_card::check(cudaDeviceSynchronize());
    graph.launch(stream.get());
    stream.wait();
    expect_same(on_card.read(), run_on_host(layer, {.hidden = drawn->hidden}), "a graph");
  }
}

TEST_P(DeviceCallTest, RowsWithAStride) {
  const LayerSpec spec = small_spec();
  const LayerWeights weights = draw_weights(spec, Numbers::noisy, 3);
  const Layer layer = small_layer(spec, weights);
  for (const std::ptrdiff_t gap : {2, 64}) {
    testing::DrawnCall drawn = draw_call(spec, Numbers::noisy, {.tokens = 6}, 9);
    const auto row = static_cast<std::size_t>(drawn.hidden.row_stride);
    std::vector<std::byte> apart(6 * (row + static_cast<std::size_t>(gap)), std::byte{0xFF});
    for (std::size_t t = 0; t < 6; ++t)
      std::copy_n(drawn.rows.begin() + static_cast<std::ptrdiff_t>(t * row), row,
                  apart.begin() + static_cast<std::ptrdiff_t>(t * (row + static_cast<std::size_t>(gap))));
    const Results want = run_on_host(layer, {.hidden = drawn.hidden});
    RowsView view = drawn.hidden;
    view.data = apart.data();
    view.row_stride += gap;
    expect_same(CardCall(layer, {.hidden = view}).run(), want, "stride");
  }
}

TEST_P(DeviceCallTest, Refusals) {
  const LayerSpec spec = small_spec();
  LayerWeights weights = draw_weights(spec, Numbers::noisy, 3);
  const Layer layer = small_layer(spec, weights);
  const testing::DrawnCall drawn = draw_call(spec, Numbers::noisy, {.tokens = 4}, 9);
  const auto refused = [&](std::string_view code, auto change) {
    CardCall on_card(layer, {.hidden = drawn.hidden});
    change(on_card.call());
    small::expect_error(code, [&] { on_card.enqueue(nullptr); });
  };
  refused("workspace_too_small", [](DeviceCall& c) { c.workspace = c.workspace.first(256); });
  refused("bad_workspace", [](DeviceCall& c) { c.workspace = c.workspace.subspan(64); });
  refused("bad_hidden", [](DeviceCall& c) { c.hidden.width = 95; });
  refused("bad_hidden", [](DeviceCall& c) { c.hidden.data += 1; });
  refused("bad_hidden", [](DeviceCall& c) { c.hidden.row_stride += 1; });
  refused("bad_routing", [](DeviceCall& c) { c.routing.ids = c.topk_ids; });
  refused("bad_routing", [](DeviceCall& c) {
    c.router_logits = c.topk_weights;
    c.routing = {c.topk_ids, c.topk_weights, 4, 3};
  });
  refused("bad_routing", [](DeviceCall& c) { c.routing = {c.topk_ids, c.topk_weights, 4, 2}; });
  weights.router.weight.reset();
  const Layer without = small_layer(spec, weights);
  small::expect_error("no_router", [&] { CardCall(without, {.hidden = drawn.hidden}).enqueue(nullptr); });
  small::expect_error("not_planned", [&] {
    const std::array<std::int32_t, 8> counts{};
    layer.enqueue_rows({.hidden = {nullptr, DType::bf16, 0, 96, 0}, .counts = counts.data()});
  });
}

TEST_P(DeviceCallTest, ALargerRouterTakesGivenIds) {
  LayerSpec spec = small_spec();
  spec.shared.reset();
  spec.routed.experts = spec.router.experts = 1100;
  spec.routed.local_experts = 8;
  std::vector<std::int32_t> map(1100, -1);
  for (int e = 0; e < 8; ++e) map[static_cast<std::size_t>(e * 137)] = e;
  const Layer layer = small_layer(spec, draw_weights(spec, Numbers::noisy, 3), map);
  const testing::DrawnCall drawn = draw_call(spec, Numbers::noisy, {.tokens = 4}, 9);
  CardCall own(layer, {.hidden = drawn.hidden});
  small::expect_error("router_too_large", [&] { own.enqueue(nullptr); });
  LayerCall call = host_call(drawn, 3);
  const std::vector<std::int32_t> ids = {0, 137, 5, 274, 411, 1099, 959, 822, 1, 548, 2000, -5};
  call.routing.ids = ids.data();
  expect_same(CardCall(layer, call).run(), run_on_host(layer, call), "given ids");
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceCallTest, ::testing::ValuesIn(on_card::known_backends()),
                         conformance::test_name);

}  // namespace
}  // namespace sluice
