// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/lora_part.h"

#include <algorithm>
#include <functional>

#include "experts/cuda/mma/lora_copy.h"
#include "experts/cuda/mma/runtime.h"
#include "routing/group.h"

namespace sluice::cuda {
namespace {

/// The lists on the card.
struct CardLists {
  std::int32_t* of_slot;
  CardLoraExpert* experts;

  CardLists(Places& places, std::size_t slots, std::size_t named)
      : of_slot(places.take<std::int32_t>(slots)), experts(places.take<CardLoraExpert>(named)) {}
};

bool adds_anything(const LoraExpert& expert) { return expert.gate || expert.up || expert.down; }

}  // namespace

LoraPart::LoraPart(const ExpertsSpec& spec, const Forward& forward, RowRange tokens, std::byte* workspace)
    : slots_(static_cast<std::size_t>(tokens.count) * static_cast<std::size_t>(forward.routing.top_k)) {
  Places places(workspace);
  by_expert_ = places.take<Named>(slots_);
  of_slot_ = places.take<std::int32_t>(slots_);
  experts_ = places.take<CardLoraExpert>(slots_);
  dense_ = places.take<std::byte>(0);
  list(spec, forward, tokens);
  if (named_ > 0) rank_ = spec.lora_rank;
}

std::size_t LoraPart::workspace_bytes(const ExpertsSpec& spec, std::size_t slots) {
  if (spec.lora_rank == 0) return 0;
  Places places(nullptr);
  places.take<Named>(slots);
  places.take<std::int32_t>(slots);
  places.take<CardLoraExpert>(slots);
  places.take<std::byte>(dense_bytes(spec));
  return places.end();
}

void LoraPart::list(const ExpertsSpec& spec, const Forward& forward, RowRange tokens) {
  const Routing& routing = forward.routing;
  std::size_t used = 0;
  for (std::size_t slot = 0; slot < slots_; ++slot) {
    of_slot_[slot] = -1;
    const int token = tokens.first + static_cast<int>(slot) / routing.top_k;
    const std::int32_t id =
        routing.ids[std::ptrdiff_t{tokens.first} * routing.top_k + static_cast<std::ptrdiff_t>(slot)];
    const std::int32_t local = local_expert(id, forward.expert_map, spec.experts);
    if (local < 0 || local >= spec.local_experts) continue;
    const LoraExpert* deltas = forward.lora->delta(token, local);
    if (deltas != nullptr && adds_anything(*deltas))
      by_expert_[used++] = {deltas, static_cast<std::int32_t>(slot)};
  }
  std::sort(by_expert_, by_expert_ + used, [](const Named& a, const Named& b) {
    return a.deltas != b.deltas ? std::less<>()(a.deltas, b.deltas) : a.slot < b.slot;
  });
  for (std::size_t i = 0; i < used; ++i) {
    const Named named = by_expert_[i];
    if (named_ == 0 || by_expert_[named_ - 1].deltas != named.deltas) by_expert_[named_++] = named;
    of_slot_[named.slot] = static_cast<std::int32_t>(named_) - 1;
  }
}

std::size_t LoraPart::card_bytes() const {
  if (rank_ == 0) return 0;
  Places places(nullptr);
  const CardLists lists(places, slots_, named_);
  for (std::size_t i = 0; i < named_; ++i) count(*by_expert_[i].deltas, places);
  return places.end();
}

CardLora LoraPart::copy(std::byte* memory, cudaStream_t stream) const {
  if (rank_ == 0) return {};
  Places places(memory);
  const CardLists lists(places, slots_, named_);
  for (std::size_t i = 0; i < named_; ++i)
    experts_[i] = cuda::copy(*by_expert_[i].deltas, {places, stream, dense_});
  check(cudaMemcpyAsync(lists.experts, experts_, named_ * sizeof(CardLoraExpert), cudaMemcpyHostToDevice,
                        stream),
        "copying adapters");
  check(
      cudaMemcpyAsync(lists.of_slot, of_slot_, slots_ * sizeof(std::int32_t), cudaMemcpyHostToDevice, stream),
      "copying adapters");
  return {.rank = rank_, .experts = lists.experts, .of_slot = lists.of_slot};
}

}  // namespace sluice::cuda
