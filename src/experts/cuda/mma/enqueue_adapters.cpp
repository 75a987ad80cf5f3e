// SPDX-License-Identifier: Apache-2.0
// What a call's adapters add: two small kernels in front of each product.
#include "experts/cuda/mma/enqueue_call.h"
#include "experts/cuda/mma/lora.h"

namespace sluice::cuda {
namespace {

LoraWork work_of(const Call& call, const Buffers& b, const Product& product) {
  const ExpertLayout& layout = call.packed.layout;
  return {.lora = call.card.lora,
          .slots = b.positions,
          .owned = b.counts + 2 * kWidths,
          .most_slots = static_cast<int>(call.slots()),
          .top_k = call.card.top_k,
          .low = b.low,
          .added = b.added,
          .added_stride = product.epilogue.added_stride,
          .local = b.local,
          .orders = layout.channels == 0 ? nullptr : product.experts + layout.channels,
          .expert_bytes = product.expert_bytes};
}

}  // namespace

void enqueue_adapters(const Call& call, const Buffers& b, const Product& product) {
  if (b.added == nullptr) return;
  const LoraWork work = work_of(call, b, product);
  cudaStream_t const stream = call.card.stream;
  if (product.down)
    check(project_mid({.work = work, .mid = b.mid, .channels = call.intermediate()}, stream),
          "starting an adapter");
  else
    check(
        project_input(
            {.work = work, .rows = call.card.input, .weights = call.weighted() ? call.card.weights : nullptr},
            stream),
        "starting an adapter");
  check(add_low({.work = work,
                 .strips = product.weights,
                 .rows = product.down ? call.spec().hidden : call.spec().intermediate,
                 .down = product.down},
                stream),
        "starting an adapter");
}

}  // namespace sluice::cuda
