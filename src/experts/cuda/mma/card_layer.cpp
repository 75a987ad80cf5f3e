// SPDX-License-Identifier: Apache-2.0
// Router, experts, shared expert and their sum as work in a stream, in the order of operations of the host's
// path (engine/forward.cpp), whose bits the outputs have.
#include "experts/cuda/mma/card_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "experts/cuda/mma/block_sum.h"
#include "experts/cuda/mma/card_adapters.h"
#include "experts/cuda/mma/enqueue.h"
#include "experts/cuda/mma/places.h"
#include "experts/cuda/routing/route.h"

namespace sluice::cuda {
namespace {

/// Copies on the card; null where there are none.
struct Constants {
  std::int32_t *expert_map, *table;
  float *router, *router_bias, *selection_bias, *expert_scale, *shared_gate;
  std::size_t bytes;

  Constants(const DeviceLayerInput& input, std::byte* memory) {
    Places places(memory);
    const auto take = [&]<class T>(T*& at, std::span<const T> from) {
      at = from.empty() ? nullptr : places.take<T>(from.size());
      if (at != nullptr)
        check(cudaMemcpy(at, from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "copying the router");
    };
    take(expert_map, input.expert_map);
    take(table, input.table);
    take(router, input.router);
    take(router_bias, input.router_bias);
    take(selection_bias, input.selection_bias);
    take(expert_scale, input.expert_scale);
    take(shared_gate, input.shared_gate);
    bytes = places.end();
  }
};

/// Where a call's own numbers lie. The first place is the router's, then the routed experts', then the shared
/// one's.
struct Buffers {
  std::byte* in_turn;
  std::int32_t* ids;         // [tokens, top_k]
  float* weights;            // [tokens, top_k]
  std::int32_t* shared_ids;  // [tokens]
  float* shared_weights;     // [tokens]
  float* shared_out;         // [tokens, hidden]
  std::size_t bytes;
};

RowsView rows_of(int rows, int width) {
  return {nullptr, DType::f32, rows, width, std::ptrdiff_t{width} * 4};
}

/// Of this kind of layer, as the engine has made sure.
const CardAdapters& card_adapters(const DeviceAdapters& adapters) {
  return static_cast<const CardAdapters&>(adapters);
}

class CardLayer : public DeviceLayer {
 public:
  CardLayer(const DeviceLayerInput& input, DeviceMemory memory)
      : spec_(input.spec),
        routed_(static_cast<const Packed&>(input.routed)),
        shared_(static_cast<const Packed*>(input.shared)),
        vocabulary_(std::ssize(input.table) / input.spec.router.top_k),
        memory_(std::move(memory)),
        on_card_(input, memory_.get()) {}

  std::shared_ptr<const DeviceAdapters> put_adapters(
      std::span<const LoraAdapter* const> adapters) const override {
    const DeviceScope scope(routed_.device());
    return std::make_shared<CardAdapters>(*this, adapters, routed_.spec,
                                          shared_ == nullptr ? nullptr : &shared_->spec);
  }
  std::size_t workspace_bytes(int tokens) const override { return lay_out(tokens, nullptr).bytes; }
  void enqueue(const DeviceCall& call) const override;
  std::size_t rows_workspace_bytes(int rows) const override;
  void enqueue_rows(const DeviceRows& call, RowRange part) const override;

 private:
  Buffers lay_out(int tokens, std::byte* memory) const;
  void check_router() const;
  Routing route(const DeviceCall& call, const Buffers& at) const;
  void copy_routing(const DeviceCall& call) const;
  void add_shared(const DeviceCall& call, const Buffers& at, const float* routed_out) const;

  const LayerSpec spec_;
  const Packed& routed_;
  const Packed* const shared_;
  const std::int64_t vocabulary_;
  DeviceMemory memory_;
  const Constants on_card_;
};

Buffers CardLayer::lay_out(int tokens, std::byte* memory) const {
  const auto count = static_cast<std::size_t>(tokens);
  const std::size_t slots = count * static_cast<std::size_t>(spec_.routed.top_k);
  const RowsView rows = rows_of(tokens, spec_.hidden());
  std::size_t in_turn = std::max(card_bytes(routed_, rows, spec_.routed.top_k, routed_.spec.lora_rank),
                                 count * static_cast<std::size_t>(spec_.router.experts) * sizeof(float));
  if (shared_ != nullptr) in_turn = std::max(in_turn, card_bytes(*shared_, rows, 1, shared_->spec.lora_rank));
  Places places(memory);
  Buffers b{};
  b.in_turn = places.take<std::byte>(in_turn);
  b.ids = places.take<std::int32_t>(slots);
  b.weights = places.take<float>(slots);
  if (shared_ != nullptr) {
    b.shared_ids = places.take<std::int32_t>(count);
    b.shared_weights = places.take<float>(count);
    b.shared_out = places.take<float>(count * static_cast<std::size_t>(spec_.hidden()));
  }
  b.bytes = places.end();
  return b;
}

void CardLayer::check_router() const {
  const RouterSpec& router = spec_.router;
  require(router.experts <= kMostRoutedExperts && router.top_k <= kMostTopK, ErrorKind::unsupported, [&] {
    return ErrorInfo{
        .code = "router_too_large",
        .what = fmt::format("routing among {} experts, top {}, on a card", router.experts, router.top_k),
        .why = fmt::format("its kernels take up to {} experts and top {}", kMostRoutedExperts, kMostTopK),
        .todo = "Give ids and weights (DeviceCall::routing)"};
  });
}

/// The routing as given, or from the logits as given, or from the layer's own.
Routing CardLayer::route(const DeviceCall& call, const Buffers& at) const {
  if (call.routing.ids != nullptr) {
    copy_routing(call);
    return call.routing;
  }
  check_router();
  const int tokens = call.hidden.rows;
  const float* logits_in = call.router_logits;
  if (logits_in == nullptr) {
    auto* const own = reinterpret_cast<float*>(at.in_turn);
    check(logits({.rows = call.hidden,
                  .outputs = spec_.router.experts,
                  .weight = on_card_.router,
                  .bias = on_card_.router_bias,
                  .out = own},
                 call.stream),
          "starting the router");
    logits_in = own;
  }
  std::int32_t* const ids = call.topk_ids != nullptr ? call.topk_ids : at.ids;
  float* const weights = call.topk_weights != nullptr ? call.topk_weights : at.weights;
  check(cuda::route({.spec = spec_.router,
                     .tokens = tokens,
                     .logits = logits_in,
                     .selection_bias = on_card_.selection_bias,
                     .expert_scale = on_card_.expert_scale,
                     .table = on_card_.table,
                     .vocabulary = vocabulary_,
                     .token_ids = call.token_ids,
                     .ids = ids,
                     .weights = weights},
                    call.stream),
        "starting the routing");
  return {ids, weights, tokens, spec_.router.top_k};
}

void CardLayer::copy_routing(const DeviceCall& call) const {
  const std::size_t bytes =
      static_cast<std::size_t>(call.hidden.rows) * static_cast<std::size_t>(call.routing.top_k) * 4;
  const auto copy = [&](void* to, const void* from) {
    if (to != nullptr && to != from)
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, call.stream), "copying routing");
  };
  copy(call.topk_ids, call.routing.ids);
  copy(call.topk_weights, call.routing.weights);
}

/// The shared expert's part, and the block where that is wanted.
void CardLayer::add_shared(const DeviceCall& call, const Buffers& at, const float* routed_out) const {
  const std::size_t count =
      static_cast<std::size_t>(call.hidden.rows) * static_cast<std::size_t>(spec_.hidden());
  if (shared_ == nullptr) {
    if (call.block_out != nullptr && call.block_out != routed_out)
      check(cudaMemcpyAsync(call.block_out, routed_out, count * sizeof(float), cudaMemcpyDeviceToDevice,
                            call.stream),
            "copying results");
    return;
  }
  const bool gated = on_card_.shared_gate != nullptr;
  if (gated)
    check(logits({.rows = call.hidden,
                  .outputs = 1,
                  .weight = on_card_.shared_gate,
                  .bias = nullptr,
                  .out = at.shared_weights},
                 call.stream),
          "starting the shared expert's gate");
  check(shared_lists({call.hidden.rows, gated, at.shared_ids, at.shared_weights}, call.stream),
        "starting the shared expert's gate");
  float* const shared_out = call.shared_out != nullptr ? call.shared_out : at.shared_out;
  cuda::enqueue(*shared_,
                {.input = call.hidden,
                 .top_k = 1,
                 .ids = at.shared_ids,
                 .weights = at.shared_weights,
                 .output = shared_out,
                 .workspace = at.in_turn,
                 .stream = call.stream,
                 .lora = call.adapters == nullptr ? CardLora()
                                                  : card_adapters(*call.adapters).shared(call.adapter_ids)});
  if (call.block_out != nullptr)
    check(add_blocks({routed_out, shared_out, call.block_out, count}, call.stream), "starting the sum");
}

void CardLayer::enqueue(const DeviceCall& call) const {
  const DeviceScope scope(routed_.device());
  const Buffers at = lay_out(call.hidden.rows, call.workspace.data());
  const Routing routing = route(call, at);
  float* const routed_out = call.experts_out != nullptr ? call.experts_out : call.block_out;
  if (routed_out != nullptr)
    cuda::enqueue(
        routed_, {.input = call.hidden,
                  .top_k = routing.top_k,
                  .ids = routing.ids,
                  .weights = routing.weights,
                  .expert_map = on_card_.expert_map,
                  .output = routed_out,
                  .workspace = at.in_turn,
                  .stream = call.stream,
                  .lora = call.adapters == nullptr ? CardLora()
                                                   : card_adapters(*call.adapters).routed(call.adapter_ids)});
  if (call.block_out != nullptr || call.shared_out != nullptr) add_shared(call, at, routed_out);
}

std::size_t CardLayer::rows_workspace_bytes(int rows) const {
  Places places(nullptr);
  places.take<std::int32_t>(static_cast<std::size_t>(rows));
  places.take<std::byte>(card_bytes(routed_, rows_of(rows, spec_.routed.hidden), 1, routed_.spec.lora_rank));
  return places.end();
}

void CardLayer::enqueue_rows(const DeviceRows& call, RowRange part) const {
  const DeviceScope scope(routed_.device());
  cudaStream_t const stream = call.stream;
  Places places(call.workspace.data());
  auto* const ids = places.take<std::int32_t>(static_cast<std::size_t>(part.count));
  check(row_ids({.offsets = call.offsets,
                 .counts = call.counts,
                 .max_tokens = call.max_tokens,
                 .local_experts = spec_.routed.local_experts,
                 .first = part.first,
                 .count = part.count,
                 .ids = ids},
                stream),
        "starting the lists of rows");
  RowsView rows = call.hidden;
  rows.data += part.first * rows.row_stride;
  rows.rows = part.count;
  // The ids are local ones: no map, and as many experts as are here.
  cuda::enqueue(routed_, {.input = rows,
                          .top_k = 1,
                          .ids = ids,
                          .weights = call.weights == nullptr ? nullptr : call.weights + part.first,
                          .output = call.output + std::ptrdiff_t{part.first} * spec_.routed.hidden,
                          .workspace = call.workspace.data() + places.end(),
                          .stream = stream,
                          .unowned = Unowned::untouched,
                          .lora = call.adapters == nullptr
                                      ? CardLora()
                                      : card_adapters(*call.adapters).routed(call.adapter_ids + part.first)});
}

}  // namespace

std::unique_ptr<DeviceLayer> on_device(const DeviceLayerInput& input) {
  const DeviceScope scope(input.device);
  const Constants sizes(input, nullptr);
  auto layer = std::make_unique<CardLayer>(input, allocate(std::max<std::size_t>(sizes.bytes, 256)));
  // A copy of pageable memory may return before it has arrived, and calls come in streams that do not wait.
  check(cudaStreamSynchronize(nullptr), "copying the router");
  return layer;
}

}  // namespace sluice::cuda
