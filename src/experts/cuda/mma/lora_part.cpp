// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/lora_part.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "experts/cuda/mma/places.h"
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

std::ptrdiff_t element_bytes(const LoraMatrix& m) { return bits(m.dtype) / 8; }
std::size_t bytes_of(const LoraMatrix& m) {
  return static_cast<std::size_t>(m.rows * m.cols * element_bytes(m));
}

bool has_dense_rows(const LoraMatrix& m) {
  return (m.cols == 1 || m.col_stride == element_bytes(m)) &&
         (m.rows == 1 || m.row_stride == m.cols * element_bytes(m));
}
bool has_dense_columns(const LoraMatrix& m) {
  return (m.rows == 1 || m.row_stride == element_bytes(m)) &&
         (m.cols == 1 || m.col_stride == m.rows * element_bytes(m));
}

void gather_rows(const LoraMatrix& m, std::byte* to) {
  const auto width = static_cast<std::size_t>(element_bytes(m));
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (std::int64_t k = 0; k < m.cols; ++k, to += width)
      std::memcpy(to, m.data + i * m.row_stride + k * m.col_stride, width);
}

/// Copies matrices to the card, one behind another, dense as they are or made so in `dense`.
struct Copy {
  Places& places;
  cudaStream_t stream;
  std::byte* dense;

  CardMatrix operator()(const LoraMatrix& m) const {
    auto* const to = places.take<std::byte>(bytes_of(m));
    const bool columns = has_dense_columns(m), as_it_is = columns || has_dense_rows(m);
    if (!as_it_is) gather_rows(m, dense);
    check(cudaMemcpyAsync(to, as_it_is ? m.data : dense, bytes_of(m), cudaMemcpyHostToDevice, stream),
          "copying an adapter");
    // The next matrix may be made in the same place.
    if (!as_it_is) check(cudaStreamSynchronize(stream), "copying an adapter");
    return {to, m.dtype, columns ? 1 : m.cols, columns ? m.rows : 1};
  }
  CardDelta operator()(const LoraDelta& delta) const {
    if (!delta) return {};
    const CardMatrix a = (*this)(delta.a);
    return {a, (*this)(delta.b), delta.scale, delta.rank()};
  }
};

/// Places that Copy takes.
void count(const LoraDelta& delta, Places& places) {
  if (!delta) return;
  places.take<std::byte>(bytes_of(delta.a));
  places.take<std::byte>(bytes_of(delta.b));
}

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
  places.take<float>(static_cast<std::size_t>(spec.lora_rank) *
                     static_cast<std::size_t>(std::max(spec.hidden, spec.intermediate)));
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
  for (std::size_t i = 0; i < named_; ++i)
    for (const LoraDelta* delta :
         {&by_expert_[i].deltas->gate, &by_expert_[i].deltas->up, &by_expert_[i].deltas->down})
      count(*delta, places);
  return places.end();
}

CardLora LoraPart::copy(std::byte* memory, cudaStream_t stream) const {
  if (rank_ == 0) return {};
  Places places(memory);
  const CardLists lists(places, slots_, named_);
  const Copy to_card{places, stream, dense_};
  for (std::size_t i = 0; i < named_; ++i) {
    const LoraExpert& deltas = *by_expert_[i].deltas;
    CardLoraExpert& expert = experts_[i];
    expert.gate = to_card(deltas.gate);
    expert.up = to_card(deltas.up);
    expert.down = to_card(deltas.down);
  }
  check(cudaMemcpyAsync(lists.experts, experts_, named_ * sizeof(CardLoraExpert), cudaMemcpyHostToDevice,
                        stream),
        "copying adapters");
  check(
      cudaMemcpyAsync(lists.of_slot, of_slot_, slots_ * sizeof(std::int32_t), cudaMemcpyHostToDevice, stream),
      "copying adapters");
  return {rank_, lists.experts, lists.of_slot};
}

}  // namespace sluice::cuda
