// SPDX-License-Identifier: Apache-2.0
// A call's views fit the layer. Shapes only: the values of a call are never refused, except those that
// index something: token ids the router's table, adapter ids the adapters, offsets and counts the rows.
#include <algorithm>

#include "engine/need.h"
#include "engine/packed_layer.h"

namespace sluice {
namespace {

constexpr Need need("See LayerCall in sluice/layer.h");

std::int64_t product(int a, int b) { return std::int64_t{a} * b; }

}  // namespace

void PackedLayer::check(const LayerCall& call) const {
  check_rows(call.hidden, spec().hidden());
  check_outputs(call);
  check_routing(call);
  if (!call.routing.ids && spec().router.by_token_id) check_token_ids(call);
  check_adapters(call.adapters, call.adapter_ids, call.hidden.rows);
  for (std::size_t token = 0; token < call.adapter_ids.size(); ++token)
    check_adapter_id(call.adapter_ids[token], static_cast<std::ptrdiff_t>(token), call.adapters.size());
}

void PackedLayer::check(const ExpertRows& call) const {
  const bool contiguous = !call.offsets.empty();
  const CallMode mode = contiguous ? CallModes::of<call::Contiguous>() : CallModes::of<call::Batched>();
  check_mode(mode);
  check_rows(call.hidden, spec().routed.hidden);
  const int local = spec().routed.local_experts, rows = call.hidden.rows;
  need(rows == 0 || call.output != nullptr, "bad_rows", "rows: no output");
  check_adapters(call.adapters, call.adapter_ids, rows);
  if (contiguous) {
    need(call.counts.empty(), "bad_rows", "rows: give offsets or counts, not both");
    need(std::ssize(call.offsets) == local + 1, "bad_rows", "rows: {} offsets, the layer has {} experts here",
         call.offsets.size(), local);
    need(call.offsets.front() == 0 && call.offsets.back() <= rows && std::ranges::is_sorted(call.offsets),
         "bad_rows", "rows: the offsets do not ascend from 0 to at most the {} rows", rows);
    return;
  }
  need(std::ssize(call.counts) == local, "bad_rows", "rows: {} counts, the layer has {} experts here",
       call.counts.size(), local);
  need(call.max_tokens >= 0 && product(local, call.max_tokens) == rows, "bad_rows",
       "rows: {} experts with room for {} are not {} rows", local, call.max_tokens, rows);
  const auto bad = std::ranges::find_if(
      call.counts, [&](std::int32_t count) { return count < 0 || count > call.max_tokens; });
  need(bad == call.counts.end(), "bad_rows", "rows: a count of {} where there is room for {}",
       bad == call.counts.end() ? 0 : *bad, call.max_tokens);
}

void PackedLayer::check_mode(CallMode mode) const {
  const std::vector<CallMode>& asked = plan_.request.calls;
  need(std::ranges::find(asked, mode) != asked.end(), "not_planned",
       "rows: the layer was not planned for {} calls (Request::calls)", mode.str());
}

void PackedLayer::check_rows(const RowsView& hidden, int width) {
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{width} * bits(hidden.dtype) / 8;
  need(hidden.rows >= 0, "bad_hidden", "hidden: {} rows", hidden.rows);
  need(hidden.width == width, "bad_hidden", "hidden: {} wide, the layer is {}", hidden.width, width);
  need(hidden.dtype == DType::bf16 || hidden.dtype == DType::f16 || hidden.dtype == DType::f32, "bad_hidden",
       "hidden: {} is none of BF16, F16, F32", name(hidden.dtype));
  need(hidden.rows == 0 || hidden.data != nullptr, "bad_hidden", "hidden: {} rows and no data", hidden.rows);
  need(hidden.rows < 2 || hidden.row_stride >= row_bytes, "bad_hidden",
       "hidden: rows of {} bytes are {} bytes apart", row_bytes, hidden.row_stride);
}

void PackedLayer::check_outputs(const LayerCall& call) const {
  need(!call.latent_out || spec().latent, "bad_outputs",
       "latent_out: the experts of this layer are not latent");
  need(!call.shared_out || spec().shared, "bad_outputs", "shared_out: the layer has no shared expert");
  if (!spec().latent || !spec().latent->norm_epsilon || (!call.experts_out && !call.block_out)) return;
  const bool part = spec().latent->part || std::ranges::find(expert_map_, -1) != expert_map_.end();
  need(!part, "latent_part",
       "experts_out, block_out: only a part of the experts' sum is made here, and the norm is one of the "
       "whole; "
       "ask for latent_out (and shared_out), add the parts up and give the sum to from_latent");
}

void PackedLayer::check_routing(const LayerCall& call) const {
  const Routing& routing = call.routing;
  const RouterSpec& router = spec().router;
  const int tokens = call.hidden.rows;
  const bool given = routing.ids != nullptr || routing.weights != nullptr;
  need(!given || call.router_logits.empty(), "bad_routing",
       "routing: give routing or router_logits, not both");
  if (given) return check_given(routing, tokens);
  if (tokens == 0) return;
  need(call.router_logits.empty() || std::ssize(call.router_logits) == product(tokens, router.experts),
       "bad_routing", "router_logits: {} numbers for {} tokens and {} experts", call.router_logits.size(),
       tokens, router.experts);
  check_own_router(!call.router_logits.empty());
}

void PackedLayer::check_given(const Routing& routing, int tokens) const {
  const int top_k = spec().router.top_k;
  need(routing.ids != nullptr && routing.weights != nullptr, "bad_routing",
       "routing: ids and weights come together");
  need(routing.tokens == tokens, "bad_routing", "routing: {} tokens, hidden has {}", routing.tokens, tokens);
  need(routing.top_k == top_k, "bad_routing", "routing: {} ids a token, the layer has top_k {}",
       routing.top_k, top_k);
}

/// What routing here needs of the layer's weights.
void PackedLayer::check_own_router(bool logits_given) const {
  const RouterSpec& router = spec().router;
  need(logits_given || router_.has_weight(), "no_router",
       "the layer's weights came without a router: give routing or router_logits");
  need(!router.selection_bias || !router_.selection_bias().empty(), "no_router",
       "the layer's weights came without the selection bias that its router adds: give routing");
  need(!router.expert_scale || !router_.expert_scale().empty(), "no_router",
       "the layer's weights came without the scales by which its router multiplies: give routing");
}

void PackedLayer::check_token_ids(const LayerCall& call) const {
  const std::int64_t vocabulary = std::ssize(router_.table()) / spec().router.top_k;
  if (call.hidden.rows == 0) return;
  need(vocabulary > 0, "no_router", "the layer's weights came without the table of token ids: give routing");
  need(std::ssize(call.token_ids) == call.hidden.rows, "bad_token_ids",
       "token_ids: {} for {} tokens; this layer routes by token id", call.token_ids.size(), call.hidden.rows);
  const auto bad =
      std::ranges::find_if(call.token_ids, [&](std::int64_t id) { return id < 0 || id >= vocabulary; });
  need(bad == call.token_ids.end(), "bad_token_ids", "token_ids: {} is outside the vocabulary of {}",
       bad == call.token_ids.end() ? 0 : *bad, vocabulary);
}

}  // namespace sluice
