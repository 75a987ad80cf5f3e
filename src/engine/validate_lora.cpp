// SPDX-License-Identifier: Apache-2.0
// A call's adapters fit the layer: shapes, ranks, and a scale that is finite.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "engine/packed_layer.h"

namespace sluice {

int LoraAdapter::largest_rank(const std::vector<LoraExpert>& experts) {
  int largest = 0;
  for (const LoraExpert& expert : experts)
    for (const LoraDelta* delta : {&expert.gate, &expert.up, &expert.down})
      if (*delta) largest = std::max(largest, delta->rank());
  return largest;
}

namespace {

/// Throws invalid_argument "bad_adapter".
template <class... Args>
void need(bool ok, fmt::format_string<Args...> what, const Args&... args) {
  require(ok, ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "bad_adapter",
                     .what = fmt::vformat(what, fmt::make_format_args(args...)),
                     .todo = "See LoraAdapter in sluice/lora.h and ExpertsSpec::lora_rank in sluice/spec.h"};
  });
}

/// Where a delta is, for messages.
struct Place {
  std::size_t adapter;
  std::string_view whose;  // "routed expert", "shared expert"
  std::size_t expert;
  std::string_view matrix;

  std::string str() const { return fmt::format("adapter {}, {} {}, {}", adapter, whose, expert, matrix); }
};

bool is_plain(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

/// Names are made only for a refusal: a call may have thousands of deltas.
void check_delta(const LoraDelta& delta, std::int64_t rows, std::int64_t cols, int most, const Place& at) {
  const auto refuse = [&](const std::string& why) { need(false, "{}: {}", at.str(), why); };
  if (!delta) {
    if (delta.b.data != nullptr) refuse("B without A");
    return;
  }
  const LoraMatrix &a = delta.a, &b = delta.b;
  if (a.rows < 1 || a.rows > most) refuse(fmt::format("rank {}, the layer's lora_rank is {}", a.rows, most));
  if (a.cols != cols) refuse(fmt::format("A has {} columns, the weight has {}", a.cols, cols));
  if (b.data == nullptr) refuse("A without B");
  if (b.rows != rows || b.cols != a.rows)
    refuse(fmt::format("B is [{}, {}], expected [{}, {}]", b.rows, b.cols, rows, a.rows));
  if (!is_plain(a.dtype) || !is_plain(b.dtype))
    refuse(fmt::format("A is {} and B is {}; F32, F16 and BF16 are read", name(a.dtype), name(b.dtype)));
  if (!std::isfinite(delta.scale)) refuse(fmt::format("scale is {}", delta.scale));
}

void check_experts(const std::vector<LoraExpert>& experts, const ExpertsSpec& spec, Place at) {
  if (experts.empty()) return;
  need(std::ssize(experts) == spec.local_experts, "adapter {} has {} {}s, the layer has {} here", at.adapter,
       experts.size(), at.whose, spec.local_experts);
  for (at.expert = 0; at.expert < experts.size(); ++at.expert) {
    const LoraExpert& expert = experts[at.expert];
    at.matrix = "gate";
    if (expert.gate && !spec.formats.gate) need(false, "{}: the layer has no gate", at.str());
    check_delta(expert.gate, spec.intermediate, spec.hidden, spec.lora_rank, at);
    at.matrix = "up";
    check_delta(expert.up, spec.intermediate, spec.hidden, spec.lora_rank, at);
    at.matrix = "down";
    check_delta(expert.down, spec.hidden, spec.intermediate, spec.lora_rank, at);
  }
}

}  // namespace

void PackedLayer::check_adapter_id(std::int32_t id, std::ptrdiff_t row, std::size_t adapters) {
  if (id < -1 || id >= static_cast<std::ptrdiff_t>(adapters))
    need(false, "adapter_ids: {} at token {}; {} adapters are given, and -1 is none", id, row, adapters);
}

/// The adapters, and that there is an id for each row. The ids themselves are check_adapter_id's.
void PackedLayer::check_adapters(std::span<const LoraAdapter* const> adapters,
                                 std::span<const std::int32_t> ids, int rows) const {
  if (adapters.empty() && ids.empty()) return;
  need(std::ssize(ids) == rows, "adapter_ids: {} for {} tokens", ids.size(), rows);
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const LoraAdapter* adapter = adapters[i];
    need(adapter != nullptr, "adapter {} is null", i);
    check_experts(adapter->routed, spec().routed, {i, "routed expert", 0, {}});
    need(adapter->shared.empty() || spec().shared, "adapter {} has a shared expert, the layer has none", i);
    if (spec().shared) check_experts(adapter->shared, spec().shared->experts, {i, "shared expert", 0, {}});
  }
}

}  // namespace sluice
