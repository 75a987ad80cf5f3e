// SPDX-License-Identifier: Apache-2.0
// One mixture-of-experts layer, ready to run: planned, packed, and called many times.
//
//   sluice::Checkpoint model = sluice::Checkpoint::open("path/to/model");
//   sluice::Plan plan = sluice::choose({.layer = model.spec(0), .device = sluice::detect()});
//   sluice::Layer layer(plan, model.weights(0));
//   std::vector<std::byte> workspace(layer.workspace_bytes(tokens));
//   layer.run({.hidden = {x, sluice::DType::bf16, tokens, hidden, 2 * hidden}, .block_out = y, .workspace =
//   workspace});
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sluice/device_call.h"
#include "sluice/executor.h"
#include "sluice/lora.h"
#include "sluice/plan.h"
#include "sluice/spec.h"

namespace sluice {

/// Called while weights are packed or read: bytes done of bytes in all. May come from any thread, one at a
/// time.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

/// What became of a layer's packed cache (LayerOptions::cache). It is counted in packings, of which a layer
/// has one for its routed experts (one for each set of formats) and one for a shared expert.
struct CacheReport {
  int loaded = 0;    // mapped from the cache
  int written = 0;   // packed, and now in the cache
  int repaired = 0;  // experts whose bytes in the cache were damaged, packed anew when they were first used
  /// Why a packing was rebuilt, or is not in the cache: a sentence each.
  std::vector<std::string> notes = {};
};

/// When the bytes of a cache are compared with their checksums.
enum class CacheCheck : std::uint8_t {
  at_first_use,  // an expert's when a call first names it, which then takes about twice as long
  at_load,       // all of them, at the speed of memory or of the disk
};

struct LayerOptions {
  /// [experts] global id -> position in LayerWeights::routed, or -1 for experts that live elsewhere. Empty:
  /// all here.
  std::vector<std::int32_t> expert_map = {};
  /// Where the work runs. Empty: a team of the layer's own, sized by the machine.
  std::shared_ptr<Executor> executor = {};
  Progress progress = {};
  /// A directory for packed weights, made where there is none; empty: none are kept. What was packed before
  /// from the same bytes of the same files, for the same backend, is mapped from there and not packed again
  /// (docs/decisions/020-packed-cache.md). Nothing about a cache is an error: what is missing, stale or
  /// damaged is packed and written again, what cannot be written is left out, and Layer::cache() says so.
  /// Whoever may write there decides what the layer computes.
  std::string cache = {};
  CacheCheck cache_check = CacheCheck::at_first_use;
};

/// One call. Views only; nothing is kept. Give `routing`, or `router_logits`, or neither (then the layer's
/// own router runs on `hidden`). All buffers are row-major and may be any of null where marked optional.
struct LayerCall {
  RowsView hidden;                               // [tokens, hidden]
  Routing routing = {};                          // optional: ids and weights as given
  std::span<const float> router_logits = {};     // optional: [tokens, experts]
  std::span<const std::int64_t> token_ids = {};  // [tokens], needed when the router goes by token id
  // LoRA, on a layer whose spec has a lora_rank.
  std::span<const LoraAdapter* const> adapters = {};  // optional
  std::span<const std::int32_t> adapter_ids = {};     // [tokens] an adapter, or -1 for none
  float* experts_out = nullptr;                       // optional: [tokens, hidden], the routed part
  /// Optional, of latent experts: [tokens, latent], what they sum up to, before the norm and the projection.
  float* latent_out = nullptr;
  float* shared_out = nullptr;          // optional: [tokens, hidden], the shared expert's part
  float* block_out = nullptr;           // optional: [tokens, hidden], with shared experts
  std::int32_t* topk_ids = nullptr;     // optional: [tokens, top_k], as used
  float* topk_weights = nullptr;        // optional: [tokens, top_k], as used
  std::span<std::byte> workspace = {};  // workspace_bytes(n) splits the tokens n at a time
};

/// One call of the routed experts alone, on rows that are already with their experts, as the all-to-all of an
/// expert-parallel engine delivers them. The plan's request must have asked for the mode. Two layouts:
///   "contiguous"  `offsets` is given: rows offsets[e] to offsets[e + 1] are those of local expert e
///   "batched"     `counts` is given: expert e has room for `max_tokens` rows, from e * max_tokens on, of
///   which
///                 the first counts[e] are used
/// Latent experts have rows of the latent width, in and out: the projections are not of the experts, and run
/// once a token, not once a row (Layer::to_latent and from_latent).
/// Rows that no expert owns are neither read nor written. Row r of `output` is the expert's result of row r
/// of `hidden`, times weights[r]. `combine` (routing.h) sums such rows into tokens.
struct ExpertRows {
  RowsView hidden;                             // [rows, routed.hidden]
  std::span<const std::int32_t> offsets = {};  // [local_experts + 1], ascending, from 0 up to hidden.rows
  std::span<const std::int32_t> counts = {};   // [local_experts], 0 to max_tokens
  int max_tokens = 0;                          // batched: hidden.rows is local_experts * max_tokens
  const float* weights = nullptr;  // optional: [rows], on the input where the layer weights inputs
  std::span<const LoraAdapter* const> adapters = {};  // optional
  std::span<const std::int32_t> adapter_ids = {};     // [rows] an adapter, or -1 for none
  float* output = nullptr;                            // [rows, routed.hidden]
  std::span<std::byte> workspace = {};                // rows_workspace_bytes(n) splits the rows n at a time
};

class Layer {
 public:
  /// Packs the weights for the plan's backend. The views must stay valid only for backends that read them in
  /// place (the reference); LayerWeights::owner is kept for that. Throws Unsupported when the plan chose
  /// nothing, out_of_memory before allocating more than the machine has free.
  Layer(const Plan& plan, const LayerWeights& weights, LayerOptions options = {});
  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;
  ~Layer();

  const Plan& plan() const;
  /// Bytes the packed weights take.
  std::int64_t packed_bytes() const;
  /// What became of the cache so far.
  CacheReport cache() const;
  /// Bytes of workspace with which a call runs `tokens` tokens at a time. A call given less than for all its
  /// tokens splits them; less than for one token is an error. Grows with `tokens`.
  std::size_t workspace_bytes(int tokens) const;

  /// Computes. Allocates nothing; safe to call from several threads with different workspaces. Throws
  /// invalid_argument for views that contradict the spec, for token ids outside the router's table and
  /// adapter ids outside the adapters; no other value is refused. A NaN in `hidden` gives NaN where the
  /// routing is given. The layer's own router makes NaN logits of it, which select no expert: ids of -1, and
  /// a routed part of zero.
  void run(const LayerCall& call) const;

  // The projections around latent experts alone, for ranks that send rows of the latent width: to_latent
  // before the rows go out, run_rows, `combine`, from_latent on the sums. The bits are those of `run`. With a
  // norm the sums must be whole: the norm of a part is no part of the norm. Workspace as of `run`.
  // invalid_argument without latent experts.

  /// [tokens, hidden] to [tokens, latent].
  void to_latent(const RowsView& hidden, float* latent, std::span<std::byte> workspace) const;
  /// Sums of experts, [tokens, latent], through the norm and back to [tokens, hidden].
  void from_latent(const float* sums, int tokens, float* output, std::span<std::byte> workspace) const;

  /// Bytes of workspace with which a call on rows runs `rows` used rows at a time; as workspace_bytes.
  std::size_t rows_workspace_bytes(int rows) const;
  /// Computes the routed experts on their rows. As run, and in the same bits: a row's result is what a
  /// token with that expert alone and that weight gets.
  void run_rows(const ExpertRows& call) const;

  // Calls on a card's tensors (device_call.h). Of layers whose backend has such calls, the cards' ones;
  // invalid_argument (not_on_card) of others. Safe to call from several threads. The current device of the
  // calling thread is as it was afterwards. `run` and `run_rows`, with the processor's memory, work beside
  // them.

  /// Copies adapters to the card, for its calls: number i of a call's adapter_ids is adapters[i]. They take
  /// their size of the card's memory. Throws invalid_argument for what `run` would refuse, out_of_memory,
  /// device.
  std::shared_ptr<const DeviceAdapters> put_adapters(std::span<const LoraAdapter* const> adapters) const;
  /// Bytes of the card's memory with which enqueue puts `tokens` tokens at a time into the stream, whatever
  /// their type. A call given less than for all its tokens splits them; less than for one is an error.
  std::size_t device_workspace_bytes(int tokens) const;
  /// Throws invalid_argument for what contradicts the spec, unsupported where routing is to be done and the
  /// router is larger than cards take (1024 experts, top 32), device where the card refuses to start the
  /// work.
  void enqueue(const DeviceCall& call) const;
  /// The same for rows that are with their experts.
  std::size_t device_rows_workspace_bytes(int rows) const;
  void enqueue_rows(const DeviceRows& call) const;

  // Live update. The weights of a layer are its own and no other layer's, so nothing else changes with them.
  // What is replaced keeps its address, its shape, its formats and its biases; everything derived from it is
  // made anew, so that the layer then gives the bits of one packed from the new weights. Nothing is allocated
  // for packed weights. The plan's request must have asked for the mode "update" (not_planned); weights that
  // a Layer of this spec would have refused are refused the same way, and so are integers whose scales have
  // another type or whose g_idx makes other groups than the layer was packed for (unsupported,
  // update_does_not_fit); the layer is then unchanged. No other call may run on this layer meanwhile; an
  // update has been done when it returns. Two experts that change places, with their rows of the router,
  // permute the ids and leave the results as they are, bit for bit (with scores of "softmax", which sums over
  // all experts in order, only where the routing is given).

  /// Replaces the weights of a routed expert, which is at position `local` of LayerWeights::routed. `owner`
  /// keeps the views alive, for backends that read them in place; what the expert had before is released.
  void update_expert(int local, const ExpertWeights& weights, std::shared_ptr<const void> owner = {});
  /// Replaces the shared expert and its gate, empty where the spec has none.
  void update_shared(const ExpertWeights& weights, const VectorView& shared_gate = {},
                     std::shared_ptr<const void> owner = {});
  /// Replaces the router: all parts of it that the layer was made with. The views are not kept.
  void update_router(const RouterWeights& weights);
  /// Replaces both projections and the norm. The views are not kept.
  void update_latent(const LatentWeights& weights);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
