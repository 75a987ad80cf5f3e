// SPDX-License-Identifier: Apache-2.0
// A call on the card beside the same call on the host.
#pragma once

#include <optional>

#include "tests/cuda/on_card.h"

namespace sluice::on_card {

/// What a call gave, on either side.
struct Results {
  std::vector<float> experts_out, shared_out, block_out, topk_weights;
  std::vector<std::int32_t> topk_ids;
};

/// Who decides which experts a token goes to.
enum class From : std::uint8_t { ids, logits, hidden };

/// The host's side of a call. `call` has no outputs and no workspace.
inline Results run_on_host(const Layer& layer, LayerCall call) {
  const LayerSpec& spec = layer.plan().request.layer;
  const auto tokens = static_cast<std::size_t>(call.hidden.rows);
  const std::size_t elements = tokens * static_cast<std::size_t>(spec.hidden());
  const std::size_t slots = tokens * static_cast<std::size_t>(spec.routed.top_k);
  Results r{std::vector<float>(elements), std::vector<float>(spec.shared ? elements : 0),
            std::vector<float>(elements), std::vector<float>(slots), std::vector<std::int32_t>(slots)};
  std::vector<std::byte> workspace(layer.workspace_bytes(call.hidden.rows));
  call.experts_out = r.experts_out.data();
  if (spec.shared) call.shared_out = r.shared_out.data();
  call.block_out = r.block_out.data();
  call.topk_ids = r.topk_ids.data();
  call.topk_weights = r.topk_weights.data();
  call.workspace = workspace;
  layer.run(call);
  return r;
}

/// The same call with its numbers and poisoned outputs and workspace on the current card.
class CardCall {
 public:
  CardCall(const Layer& layer, const LayerCall& call, int tokens_at_once = 0)
      : layer_(layer),
        shared_(layer.plan().request.layer.shared.has_value()),
        hidden_(std::span(call.hidden.data, bytes_of(call.hidden))),
        ids_(std::span(call.routing.ids, call.routing.ids == nullptr ? 0 : slots(call))),
        weights_(std::span(call.routing.weights, ids_.span().size())),
        logits_(call.router_logits),
        token_ids_(call.token_ids),
        adapter_ids_(call.adapter_ids),
        adapters_(call.adapter_ids.empty() ? nullptr : layer.put_adapters(call.adapters)),
        experts_out_(elements(call)),
        shared_out_(shared_ ? elements(call) : 0),
        block_out_(elements(call)),
        topk_weights_(slots(call)),
        topk_ids_(slots(call)),
        workspace_(layer.device_workspace_bytes(tokens_at_once == 0 ? call.hidden.rows : tokens_at_once)) {
    device_.hidden = call.hidden;
    device_.hidden.data = hidden_.get();
    if (call.routing.ids != nullptr)
      device_.routing = {ids_.get(), weights_.get(), call.routing.tokens, call.routing.top_k};
    if (!call.router_logits.empty()) device_.router_logits = logits_.get();
    if (!call.token_ids.empty()) device_.token_ids = token_ids_.get();
    if (adapters_ != nullptr) {
      device_.adapters = adapters_.get();
      device_.adapter_ids = adapter_ids_.get();
    }
    device_.experts_out = experts_out_.get();
    if (shared_) device_.shared_out = shared_out_.get();
    device_.block_out = block_out_.get();
    device_.topk_ids = topk_ids_.get();
    device_.topk_weights = topk_weights_.get();
    device_.workspace = workspace_.span();
  }

  /// To be changed before enqueue.
  DeviceCall& call() { return device_; }
  void enqueue(cudaStream_t stream) {
    device_.stream = stream;
    layer_.enqueue(device_);
  }
  void poison() {
    experts_out_.poison();
    if (shared_) shared_out_.poison();
    block_out_.poison();
    topk_weights_.poison();
    topk_ids_.poison();
    workspace_.poison();
  }
  void write_hidden(std::span<const std::byte> rows) { hidden_.write(rows); }
  void write_adapter_ids(std::span<const std::int32_t> ids) { adapter_ids_.write(ids); }
  Results read() const {
    return {experts_out_.read(), shared_out_.read(), block_out_.read(), topk_weights_.read(),
            topk_ids_.read()};
  }
  /// Enqueues into a stream of its own and waits.
  Results run() {
    const Stream stream;
    poison();
    check(cudaDeviceSynchronize());
    enqueue(stream.get());
    stream.wait();
    return read();
  }

 private:
  static std::size_t bytes_of(const RowsView& rows) {
    return static_cast<std::size_t>(rows.rows) * static_cast<std::size_t>(rows.row_stride);
  }
  std::size_t elements(const LayerCall& call) const {
    return static_cast<std::size_t>(call.hidden.rows) * static_cast<std::size_t>(call.hidden.width);
  }
  std::size_t slots(const LayerCall& call) const {
    return static_cast<std::size_t>(call.hidden.rows) *
           static_cast<std::size_t>(layer_.plan().request.layer.routed.top_k);
  }

  const Layer& layer_;
  const bool shared_;
  Array<std::byte> hidden_;
  Array<std::int32_t> ids_;
  Array<float> weights_, logits_;
  Array<std::int64_t> token_ids_;
  Array<std::int32_t> adapter_ids_;
  std::shared_ptr<const DeviceAdapters> adapters_;
  Array<float> experts_out_, shared_out_, block_out_, topk_weights_;
  Array<std::int32_t> topk_ids_;
  Array<std::byte> workspace_;
  DeviceCall device_;
};

/// A call's graph.
class Graph {
 public:
  Graph(CardCall& call, cudaStream_t stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    call.enqueue(stream);
    check(cudaStreamEndCapture(stream, &graph_));
    check(cudaGraphInstantiate(&replayed_, graph_, 0));
  }
  ~Graph() {
    cudaGraphExecDestroy(replayed_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(replayed_, stream)); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t replayed_ = nullptr;
};

inline void expect_same(const Results& got, const Results& want, const std::string& what) {
  EXPECT_EQ(got.topk_ids, want.topk_ids) << what;
  EXPECT_TRUE(same_bits(got.topk_weights, want.topk_weights)) << what << ": topk_weights";
  EXPECT_TRUE(same_bits(got.experts_out, want.experts_out)) << what << ": experts_out";
  EXPECT_TRUE(same_bits(got.shared_out, want.shared_out)) << what << ": shared_out";
  EXPECT_TRUE(same_bits(got.block_out, want.block_out)) << what << ": block_out";
}

}  // namespace sluice::on_card
