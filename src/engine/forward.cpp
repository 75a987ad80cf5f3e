// SPDX-License-Identifier: Apache-2.0
// The forward call. Nothing here allocates; every buffer is the caller's.
#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "engine/move_to_part.h"
#include "engine/packed_layer.h"
#include "engine/places.h"
#include "oracle/oracle.h"
#include "routing/scores.h"

namespace sluice {
namespace {

/// The part of a call that starts at token `first` and has `count` of them.
LayerCall slice(const LayerCall& call, const LayerSpec& spec, int first, int count) {
  const std::size_t from = static_cast<std::size_t>(first), tokens = static_cast<std::size_t>(count);
  const std::size_t experts = static_cast<std::size_t>(spec.routed.experts);
  LayerCall part = call;
  move_to_part(part, spec, first, count);
  if (!call.router_logits.empty())
    part.router_logits = call.router_logits.subspan(from * experts, tokens * experts);
  if (!call.token_ids.empty()) part.token_ids = call.token_ids.subspan(from, tokens);
  if (!call.adapter_ids.empty()) part.adapter_ids = call.adapter_ids.subspan(from, tokens);
  if (call.latent_out) part.latent_out += std::ptrdiff_t{first} * spec.routed.hidden;
  return part;
}

}  // namespace

/// Enough for every kernel that a part of `tokens` tokens or fewer may come to, so that the last and smaller
/// part of a split call fits too, and the size grows with the tokens.
std::size_t PackedLayer::kernel_bytes(const PackedExperts& packed, int tokens) const {
  std::size_t bytes = 0;
  for (const Kernel& kernel : packed.backend.kernels()) {
    if (kernel.tokens.first > tokens) continue;
    bytes = std::max(
        bytes, kernel.workspace_bytes(packed, std::min(tokens, kernel.tokens.last), executor_->workers()));
  }
  return bytes;
}

/// The groups of experts run in turn.
std::size_t PackedLayer::routed_bytes(int tokens) const {
  std::size_t bytes = 0;
  for (const PackedGroup& group : routed_) bytes = std::max(bytes, kernel_bytes(*group.packed, tokens));
  return bytes;
}

WorkspaceLayout PackedLayer::layout(int tokens) const {
  const ExpertsSpec& routed = spec().routed;
  const std::size_t count = static_cast<std::size_t>(tokens);
  const std::size_t hidden = count * static_cast<std::size_t>(spec().hidden());
  const std::size_t slots = count * static_cast<std::size_t>(routed.top_k);
  WorkspaceLayout at;

  Places router(0);
  at.router_rows = router.take<float>(hidden);
  at.logits = router.take<float>(count * static_cast<std::size_t>(routed.experts));
  at.top_k = router.take_bytes(top_k_scratch_bytes(spec().router));
  at.latent.rows = at.router_rows;
  if (latent_) at.latent.decoded = router.take<float>(latent_->scratch_floats(executor_->workers()));
  std::size_t in_turn = std::max(router.end(), aligned(routed_bytes(tokens)));
  if (shared_) in_turn = std::max(in_turn, aligned(kernel_bytes(*shared_, tokens)));

  Places kept(in_turn);
  at.ids = kept.take<std::int32_t>(slots);
  at.weights = kept.take<float>(slots);
  if (shared_) {
    at.shared_ids = kept.take<std::int32_t>(count);
    at.shared_weights = kept.take<float>(count);
    at.shared_out = kept.take<float>(hidden);
  }
  if (mixed()) {
    at.mixed.rows = kept.take<std::int32_t>(slots);
    at.mixed.output_rows = kept.take<std::int32_t>(slots);
    at.mixed.ids = kept.take<std::int32_t>(slots);
    at.mixed.weights = kept.take<float>(slots);
    at.mixed.adapter_ids = kept.take<std::int32_t>(slots);
    at.mixed.row_of_slot = kept.take<std::int32_t>(slots);
    at.mixed.results = kept.take<float>(slots * static_cast<std::size_t>(routed.hidden));
  }
  if (latent_) {
    at.latent.projected = kept.take<float>(count * static_cast<std::size_t>(routed.hidden));
    at.latent.sums = kept.take<float>(count * static_cast<std::size_t>(routed.hidden));
  }
  at.bytes = kept.end() + kAlign - 1;
  return at;
}

/// The most tokens, up to `wanted`, whose workspace is no larger than a call's.
int PackedLayer::tokens_at_once(int wanted, std::size_t workspace_bytes) const {
  // Slots, and the columns that backends combine, are counted in 32 bits.
  const ExpertsSpec& routed = spec().routed;
  const std::int64_t columns =
      std::max<std::int64_t>({spec().hidden(), routed.top_k, routed.hidden,
                              mixed() ? std::int64_t{routed.hidden} * routed.top_k : 0});
  const std::int64_t countable = std::numeric_limits<int>::max() / columns;
  const auto fits = [&](int tokens) {
    return tokens <= countable && layout(tokens).bytes <= workspace_bytes;
  };
  if (fits(wanted)) return wanted;
  int most = 0, too_many = wanted;
  while (too_many - most > 1) {
    const int middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  require(most > 0, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{
        .code = "workspace_too_small",
        .what = "the workspace is too small for one token",
        .why =
            std::to_string(workspace_bytes) + " bytes given, " + std::to_string(layout(1).bytes) + " needed",
        .todo = "Give workspace_bytes(tokens); less than that splits the call, down to workspace_bytes(1)"};
  });
  return most;
}

void PackedLayer::run(const LayerCall& call) const {
  check(call);
  if (call.hidden.rows == 0) return;
  const int step = tokens_at_once(call.hidden.rows, call.workspace.size());
  for (std::int64_t first = 0; first < call.hidden.rows; first += step) {
    const int begin = static_cast<int>(first);
    run_part(slice(call, spec(), begin, std::min(step, call.hidden.rows - begin)));
  }
}

void PackedLayer::run_part(const LayerCall& call) const {
  const WorkspaceLayout at = layout(call.hidden.rows);
  const Routing routing = route(call, at);
  const std::size_t slots =
      static_cast<std::size_t>(routing.tokens) * static_cast<std::size_t>(routing.top_k);
  if (call.topk_ids) std::copy_n(routing.ids, slots, call.topk_ids);
  if (call.topk_weights) std::copy_n(routing.weights, slots, call.topk_weights);

  float* const routed_out = call.experts_out ? call.experts_out : call.block_out;
  if (latent_ && (routed_out || call.latent_out))
    run_latent(call, at, routing, routed_out);
  else if (routed_out)
    run_routed(call, at, routing, routed_out);
  if (call.block_out || call.shared_out) add_shared(call, at, routed_out);
}

/// `call.hidden` are the experts' rows, and `output` is as wide.
void PackedLayer::run_routed(const LayerCall& call, const WorkspaceLayout& at, const Routing& routing,
                             float* output) const {
  if (mixed())
    run_groups(call, at.mixed, routing, output);
  else
    forward(*routed_.front().packed, call, routing, output);
}

/// The routing as given, or from the logits as given, or from the layer's own.
Routing PackedLayer::route(const LayerCall& call, const WorkspaceLayout& at) const {
  if (call.routing.ids) return call.routing;
  const RouterSpec& router = spec().router;
  const int tokens = call.hidden.rows;
  const std::size_t count = static_cast<std::size_t>(tokens);
  std::span<const float> logits = call.router_logits;
  if (logits.empty()) {
    float* const own = place<float>(call.workspace, at.logits);
    router_.logits(call.hidden, *executor_, place<float>(call.workspace, at.router_rows), own);
    logits = {own, count * static_cast<std::size_t>(router.experts)};
  }
  const std::size_t slots = count * static_cast<std::size_t>(router.top_k);
  const std::span<std::int32_t> ids(place<std::int32_t>(call.workspace, at.ids), slots);
  const std::span<float> weights(place<float>(call.workspace, at.weights), slots);
  const std::span<std::byte> scratch(place<std::byte>(call.workspace, at.top_k), top_k_scratch_bytes(router));
  const bool by_id = router.by_token_id;
  top_k(router,
        {.logits = logits,
         .tokens = tokens,
         .selection_bias = router_.selection_bias(),
         .expert_scale = router_.expert_scale(),
         .table = by_id ? router_.table() : std::span<const std::int32_t>(),
         .token_ids = by_id ? call.token_ids : std::span<const std::int64_t>()},
        ids, weights, scratch);
  return {ids.data(), weights.data(), tokens, router.top_k};
}

/// Every token goes to the one shared expert, with weight 1 or sigmoid(g . x).
Routing PackedLayer::route_shared(const LayerCall& call, const WorkspaceLayout& at) const {
  const int tokens = call.hidden.rows;
  auto* const ids = place<std::int32_t>(call.workspace, at.shared_ids);
  auto* const weights = place<float>(call.workspace, at.shared_weights);
  std::fill_n(ids, tokens, 0);
  std::fill_n(weights, tokens, 1.0f);
  if (!shared_gate_.empty()) {
    float* const rows = place<float>(call.workspace, at.router_rows);
    const std::ptrdiff_t hidden = spec().hidden();
    parallel_for(*executor_, tokens, [&](int token, int) {
      float* const row = rows + token * hidden;
      read_row(call.hidden, token, row);
      weights[token] = score::sigmoid(dot(shared_gate_.data(), row, spec().hidden()));
    });
  }
  return {ids, weights, tokens, 1};
}

void PackedLayer::forward(const PackedExperts& packed, const LayerCall& call, const Routing& routing,
                          float* output) const {
  const bool is_routed = &packed != shared_.get();
  const LoraCall lora{.adapters = call.adapters,
                      .ids = call.adapter_ids,
                      .experts = is_routed ? &LoraAdapter::routed : &LoraAdapter::shared};
  run_kernel(
      packed, call.hidden.rows,
      {.input = call.hidden,
       .routing = routing,
       .expert_map = is_routed ? std::span<const std::int32_t>(expert_map_) : std::span<const std::int32_t>(),
       .output = output,
       .workspace = {place<std::byte>(call.workspace, 0), kernel_bytes(packed, call.hidden.rows)},
       .executor = executor_.get(),
       .lora = call.adapter_ids.empty() ? nullptr : &lora});
}

/// Runs the kernel that takes `tokens`.
void PackedLayer::run_kernel(const PackedExperts& packed, int tokens, const Forward& call) const {
  const Kernel* kernel = kernel_for(packed.backend, tokens);
  require(kernel != nullptr, ErrorKind::unsupported, [&] {
    return ErrorInfo{
        .code = "no_kernel",
        .what = std::string(packed.backend.name) + " has no kernel for " + std::to_string(tokens) + " tokens",
        .todo = "Give fewer tokens at a time"};
  });
  for (const std::unique_ptr<FirstTouch>& touch : first_touches_)
    if (touch->is_of(packed)) touch->look(call);
  kernel->run(packed, call);
}

/// The shared expert's part, and the block where that is wanted.
void PackedLayer::add_shared(const LayerCall& call, const WorkspaceLayout& at,
                             const float* routed_out) const {
  const std::ptrdiff_t hidden = spec().hidden();
  float* shared_out = nullptr;
  if (shared_) {
    const Routing routing = route_shared(call, at);
    shared_out = call.shared_out ? call.shared_out : place<float>(call.workspace, at.shared_out);
    forward(*shared_, call, routing, shared_out);
  }
  if (!call.block_out) return;
  parallel_for(*executor_, call.hidden.rows, [&](int token, int) {
    const float* const routed = routed_out + token * hidden;
    float* const block = call.block_out + token * hidden;
    if (shared_out == nullptr) {
      if (block != routed) std::copy_n(routed, hidden, block);
      return;
    }
    const float* const shared = shared_out + token * hidden;
    for (std::ptrdiff_t i = 0; i < hidden; ++i) block[i] = routed[i] + shared[i];
  });
}

}  // namespace sluice
