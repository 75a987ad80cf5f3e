// SPDX-License-Identifier: Apache-2.0
// Adapters in calls on a card's tensors: the bits of Layer::run and run_rows, whatever the views, in parts,
// in a graph that is replayed with other ids; and what is refused.
#include <algorithm>

#include "testing/draw.h"
#include "testing/drawn_lora.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/ranks.h"
#include "tests/cuda/device_call.h"

namespace sluice {
namespace {

using conformance::Case;
using conformance::Dispatch;
using conformance::Problem;
using on_card::Array;
using on_card::CardCall;
using on_card::run_on_host;
using testing::Numbers;

class CardAdaptersTest : public on_card::BackendTest {
 protected:
  void SetUp() override {
    on_card::BackendTest::SetUp();
    if (!IsSkipped() && !backend().can.features.has(Features::of<feature::Lora>()))
      GTEST_SKIP() << "declares no lora";
  }
  LayerSpec spec_with_adapters() const {
    LayerSpec spec = small_spec();
    spec.routed.lora_rank = spec.shared->experts.lora_rank = 5;
    return spec;
  }
};

/// A small layer, a call on it, and adapters.
struct Drawn {
  LayerSpec spec;
  LayerWeights weights = draw_weights(spec, Numbers::noisy, 3);
  testing::DrawnCall call;
  testing::DrawnLora lora;
  std::vector<const LoraAdapter*> adapters = lora.pointers();

  Drawn(const LayerSpec& of, testing::CallShape shape)
      : spec(of),
        call(draw_call(spec, Numbers::noisy, shape, 9)),
        lora(draw_lora(spec, Numbers::noisy, shape.tokens, 4)) {}
  LayerCall host_call() const {
    return {.hidden = call.hidden, .adapters = adapters, .adapter_ids = lora.ids};
  }
};

TEST_P(CardAdaptersTest, TheBitsOfTheHostsCall) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const int tokens : {1, 5, 100}) {
      const Drawn drawn(spec_with_adapters(), {.tokens = tokens, .dtype = dtype});
      const Layer layer = small_layer(drawn.spec, drawn.weights);
      const on_card::Results want = run_on_host(layer, drawn.host_call());
      for (const int at_once : {0, 3}) {
        SCOPED_TRACE(::testing::Message() << tokens << " tokens, " << at_once << " at once");
        expect_same(CardCall(layer, drawn.host_call(), at_once).run(), want, "with adapters");
      }
      if (tokens > 2) {
        EXPECT_FALSE(on_card::same_bits(want.shared_out,
                                        run_on_host(layer, {.hidden = drawn.call.hidden}).shared_out));
      }
    }
}

TEST_P(CardAdaptersTest, EveryFormat) {
  const FeatureSet all = Features::set<feature::GateUpBias, feature::DownBias, feature::WeightOnInput,
                                       feature::ExpertMap, feature::ActOrder, feature::Lora>();
  for (const Format format : conformance::members(backend().can.weights)) {
    const Case made = conformance::make_case(format, format, Activations::of<activation::Silu>(),
                                             conformance::applicable(all, format), {.hidden = 288});
    const Problem problem(made, Numbers::noisy, {.tokens = 9, .dtype = DType::f32});
    const Layer layer = problem.layer(backend());
    const std::vector<const LoraAdapter*> adapters = problem.lora().pointers();
    const LayerCall call{.hidden = problem.call().hidden,
                         .routing = problem.call().routing(made.spec.routed.top_k),
                         .adapters = adapters,
                         .adapter_ids = problem.lora().ids};
    const on_card::Results got = CardCall(layer, call).run();
    expect_same(got, run_on_host(layer, call), made.name);
    problem.expect_right({got.experts_out, got.block_out, testing::unit_of(layer.plan().chosen)});
  }
}

TEST_P(CardAdaptersTest, IdsOfNoAdapter) {
  const Drawn drawn(spec_with_adapters(), {.tokens = 6});
  const Layer layer = small_layer(drawn.spec, drawn.weights);
  CardCall call(layer, drawn.host_call());
  call.write_adapter_ids(std::vector<std::int32_t>{-1, 2, -7, 1 << 30, 99, -1});
  expect_same(call.run(), run_on_host(layer, {.hidden = drawn.call.hidden}), "nobody's");
}

TEST_P(CardAdaptersTest, AGraphReplayedWithOtherIds) {
  const Drawn drawn(spec_with_adapters(), {.tokens = 6});
  const Layer layer = small_layer(drawn.spec, drawn.weights);
  CardCall call(layer, drawn.host_call());
  const on_card::Stream stream;
  const on_card::Graph graph(call, stream.get());
  for (const std::vector<std::int32_t>& ids :
       {std::vector<std::int32_t>{0, 0, 1, 1, -1, -1}, {-1, -1, -1, -1, -1, -1}, {1, 0, 1, 0, 1, 0}}) {
    call.poison();
    call.write_adapter_ids(ids);
    on_card::check(cudaDeviceSynchronize());
    graph.launch(stream.get());
    stream.wait();
    LayerCall host = drawn.host_call();
    host.adapter_ids = ids;
    expect_same(call.read(), run_on_host(layer, host), "a graph");
  }
}

TEST_P(CardAdaptersTest, RowsThatAreWithTheirExperts) {
  const Format format = conformance::members(backend().can.weights).front();
  const Case made = conformance::make_case(format, format, Activations::of<activation::Silu>(),
                                           Features::set<feature::DownBias, feature::Lora>());
  const Problem problem(made, Numbers::noisy, {.tokens = 13, .dtype = DType::f32});
  const conformance::Rank rank = {2, 0, 5};
  const Layer layer = layer_of(backend(), problem, problem.weights(), rank);
  std::vector<LoraAdapter> of_rank;
  for (const LoraAdapter& adapter : problem.lora().adapters) {
    of_rank.push_back({.owner = adapter.owner});
    for (const std::int32_t id : rank)
      of_rank.back().routed.push_back(adapter.routed[static_cast<std::size_t>(id)]);
  }
  const std::vector<const LoraAdapter*> pointers = {&of_rank[0], &of_rank[1]};
  const auto put = layer.put_adapters(pointers);
  EXPECT_GT(put->bytes(), 0);
  for (const bool batched : {false, true}) {
    Dispatch rows = dispatch(problem, rank, batched, [&](std::int32_t slot) {
      const auto found = std::ranges::find(rank, problem.call().ids[static_cast<std::size_t>(slot)]);
      return found == rank.end() ? -1 : static_cast<int>(found - rank.begin());
    });
    const int count = static_cast<int>(rows.slots.size()), width = made.spec.routed.hidden;
    const Array<float> hidden(rows.hidden);
    Array<float> output(rows.output);
    const Array<std::int32_t> offsets(rows.offsets), counts(rows.counts), ids(rows.adapter_ids);
    for (const int at_once : {count, 5}) {
      output.write(rows.output);
      const Array<std::byte> workspace(layer.device_rows_workspace_bytes(at_once));
      layer.enqueue_rows({.hidden = {reinterpret_cast<const std::byte*>(hidden.get()), DType::f32, count,
                                     width, std::ptrdiff_t{width} * 4},
                          .offsets = batched ? nullptr : offsets.get(),
                          .counts = batched ? counts.get() : nullptr,
                          .max_tokens = batched ? rows.max_tokens : 0,
                          .adapters = put.get(),
                          .adapter_ids = ids.get(),
                          .output = output.get(),
                          .workspace = workspace.span()});
      const std::vector<float> got = output.read();
      Dispatch on_host = rows;
      run(layer, problem, on_host, 100);
      EXPECT_TRUE(on_card::same_bits(got, on_host.output)) << batched << ", " << at_once << " at once";
    }
  }
}

TEST_P(CardAdaptersTest, Refusals) {
  const Drawn drawn(spec_with_adapters(), {.tokens = 4});
  const Layer layer = small_layer(drawn.spec, drawn.weights), other = small_layer(drawn.spec, drawn.weights),
              without = small_layer(small_spec(), drawn.weights);
  CardCall call(layer, drawn.host_call());
  const std::int32_t* const ids = call.call().adapter_ids;
  call.call().adapter_ids = nullptr;
  small::expect_error("bad_adapter", [&] { call.enqueue(nullptr); });
  call.call().adapter_ids = ids;
  call.call().adapters = nullptr;
  small::expect_error("bad_adapter", [&] { call.enqueue(nullptr); });
  const auto of_other = other.put_adapters(drawn.adapters);
  call.call().adapters = of_other.get();
  small::expect_error("bad_adapter", [&] { call.enqueue(nullptr); });
  small::expect_error("bad_adapter", [&] { without.put_adapters(drawn.adapters); });
  testing::DrawnLora wrong = drawn.lora;
  wrong.adapters[1].routed[2].up.b.rows -= 1;
  small::expect_error("bad_adapter", [&] { layer.put_adapters(wrong.pointers()); });
}

INSTANTIATE_TEST_SUITE_P(Backends, CardAdaptersTest, ::testing::ValuesIn(on_card::known_backends()),
                         conformance::test_name);

}  // namespace
}  // namespace sluice
