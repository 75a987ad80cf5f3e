// SPDX-License-Identifier: Apache-2.0
// Calls on a card's tensors: checked as far as the host can see, cut into parts that the workspace holds, and
// handed to the backend.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/error.h"
#include "engine/move_to_part.h"
#include "engine/need.h"
#include "engine/packed_layer.h"
#include "oracle/oracle.h"

namespace sluice {
namespace {

constexpr std::uintptr_t kDeviceAlign = 256;

constexpr Need need("See sluice/device_call.h");

bool is_multiple(const void* pointer, std::uintptr_t of) {
  return reinterpret_cast<std::uintptr_t>(pointer) % of == 0;
}

/// Kernels read whole elements, which the processor does not need to.
void check_alignment(const RowsView& hidden) {
  const int bytes = bits(hidden.dtype) / 8;
  need(is_multiple(hidden.data, static_cast<std::uintptr_t>(bytes)) && hidden.row_stride % bytes == 0,
       "bad_hidden", "hidden: elements of {} bytes do not lie at multiples of {}", bytes, bytes);
}

/// The largest count up to `wanted` with fits(count); 0 for none.
template <class Fits>
int most_that_fit(int wanted, Fits&& fits) {
  if (fits(wanted)) return wanted;
  int most = 0, too_many = wanted;
  while (too_many - most > 1) {
    const int middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most;
}

/// Tokens, or rows, that a workspace is enough for. `bytes(count)` is asked.
template <class Bytes>
int at_once(std::span<std::byte> workspace, int wanted, int countable, Bytes&& bytes) {
  need(is_multiple(workspace.data(), kDeviceAlign), "bad_workspace",
       "the workspace does not begin at a multiple of 256 bytes");
  const int most = most_that_fit(
      wanted, [&](int count) { return count <= countable && bytes(count) <= workspace.size(); });
  require(most > 0, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "workspace_too_small",
                     .what = "the workspace is too small for one token or row",
                     .why = fmt::format("{} bytes given, {} needed", workspace.size(), bytes(1)),
                     .todo =
                         "Give what device_workspace_bytes or device_rows_workspace_bytes says; less "
                         "than for all splits the call, down to that for one"};
  });
  return most;
}

/// The part of a call that starts at token `first` and has `count` of them.
DeviceCall slice(const DeviceCall& call, const LayerSpec& spec, int first, int count) {
  DeviceCall part = call;
  move_to_part(part, spec, first, count);
  if (call.router_logits) part.router_logits += std::ptrdiff_t{first} * spec.routed.experts;
  if (call.token_ids) part.token_ids += first;
  if (call.adapter_ids) part.adapter_ids += first;
  return part;
}

}  // namespace

void PackedLayer::put_on_device() {
  const Backend& backend = *find_backend(plan_.chosen, backends());
  if (backend.on_device == nullptr || mixed() || latent_) return;
  device_ = backend.on_device({.spec = spec(),
                               .device = plan_.request.device.index,
                               .routed = *routed_.front().packed,
                               .shared = shared_.get(),
                               .expert_map = expert_map_,
                               .router = router_.weight(),
                               .router_bias = router_.bias(),
                               .selection_bias = router_.selection_bias(),
                               .expert_scale = router_.expert_scale(),
                               .shared_gate = shared_gate_,
                               .table = router_.table()});
}

const DeviceLayer& PackedLayer::on_device() const {
  require(device_ != nullptr, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{
        .code = "not_on_card",
        .what = fmt::format("a call on a card's tensors, and the layer runs on {}", plan_.chosen),
        .why = "this backend computes on memory of the processor",
        .todo =
            "Plan with Request::device = sluice::known_device(\"cuda\"), or copy the "
            "tensors and call Layer::run"};
  });
  return *device_;
}

void PackedLayer::check_put(const DeviceAdapters* adapters, const std::int32_t* ids) const {
  need((adapters != nullptr) == (ids != nullptr), "bad_adapter",
       "adapters and adapter_ids: give both or neither");
  need(adapters == nullptr || &adapters->layer() == device_.get(), "bad_adapter",
       "adapters: they were put on the card by another layer");
}

std::shared_ptr<const DeviceAdapters> PackedLayer::put_adapters(
    std::span<const LoraAdapter* const> adapters) const {
  const DeviceLayer& layer = on_device();
  check_adapters(adapters, {}, 0);
  return layer.put_adapters(adapters);
}

void PackedLayer::check(const DeviceCall& call) const {
  check_rows(call.hidden, spec().hidden());
  check_alignment(call.hidden);
  check_put(call.adapters, call.adapter_ids);
  need(!call.shared_out || spec().shared, "bad_outputs", "shared_out: the layer has no shared expert");
  const bool given = call.routing.ids != nullptr || call.routing.weights != nullptr;
  need(!given || !call.router_logits, "bad_routing", "routing: give routing or router_logits, not both");
  if (given) return check_given(call.routing, call.hidden.rows);
  if (call.hidden.rows == 0) return;
  check_own_router(call.router_logits != nullptr);
  if (!spec().router.by_token_id) return;
  need(!router_.table().empty(), "no_router",
       "the layer's weights came without the table of token ids: give routing");
  need(call.token_ids != nullptr, "bad_token_ids", "token_ids: none; this layer routes by token id");
}

void PackedLayer::check(const DeviceRows& call) const {
  const bool contiguous = call.offsets != nullptr;
  check_mode(contiguous ? CallModes::of<call::Contiguous>() : CallModes::of<call::Batched>());
  check_rows(call.hidden, spec().routed.hidden);
  check_alignment(call.hidden);
  check_put(call.adapters, call.adapter_ids);
  need(call.hidden.rows == 0 || call.output != nullptr, "bad_rows", "rows: no output");
  need(contiguous != (call.counts != nullptr), "bad_rows", "rows: give offsets or counts, one of the two");
  const std::int64_t room = std::int64_t{spec().routed.local_experts} * call.max_tokens;
  need(contiguous || (call.max_tokens >= 0 && room == call.hidden.rows), "bad_rows",
       "rows: {} experts with room for {} are not {} rows", spec().routed.local_experts, call.max_tokens,
       call.hidden.rows);
}

std::size_t PackedLayer::device_workspace_bytes(int tokens) const {
  const DeviceLayer& layer = on_device();
  return tokens > 0 ? layer.workspace_bytes(tokens) : 0;
}

std::size_t PackedLayer::device_rows_workspace_bytes(int rows) const {
  const DeviceLayer& layer = on_device();
  return rows > 0 ? layer.rows_workspace_bytes(rows) : 0;
}

void PackedLayer::enqueue(const DeviceCall& call) const {
  const DeviceLayer& layer = on_device();
  check(call);
  const int tokens = call.hidden.rows;
  if (tokens == 0) return;
  // Slots are counted in 32 bits.
  const int countable = std::numeric_limits<int>::max() / spec().routed.top_k;
  const int step =
      at_once(call.workspace, tokens, countable, [&](int count) { return layer.workspace_bytes(count); });
  for (std::int64_t first = 0; first < tokens; first += step) {
    const int begin = static_cast<int>(first);
    layer.enqueue(slice(call, spec(), begin, std::min(step, tokens - begin)));
  }
}

void PackedLayer::enqueue_rows(const DeviceRows& call) const {
  const DeviceLayer& layer = on_device();
  check(call);
  const int rows = call.hidden.rows;
  if (rows == 0) return;
  const int step = at_once(call.workspace, rows, std::numeric_limits<int>::max(),
                           [&](int count) { return layer.rows_workspace_bytes(count); });
  for (std::int64_t first = 0; first < rows; first += step) {
    const int begin = static_cast<int>(first);
    layer.enqueue_rows(call, {begin, std::min(step, rows - begin)});
  }
}

}  // namespace sluice
