// SPDX-License-Identifier: Apache-2.0
// A call of few tokens in one launch.
#include <algorithm>

#include "experts/cuda/mma/decode.h"
#include "experts/cuda/mma/enqueue_call.h"
#include "experts/cuda/mma/start.h"

namespace sluice::cuda {
namespace {

bool by_slices(const Call& call) { return call.slots() < kStripSlots && takes_slices(call.packed.layout); }

DecodeKernel kernel_for(const Call& call) {
  const ExpertLayout& layout = call.packed.layout;
  return by_slices(call)
             ? slices_kernel(layout.up.storage, std::max(layout.up.k_blocks, layout.down.k_blocks))
             : strips_kernel(layout.up.storage);
}

}  // namespace

DecodeKernel slices_kernel(Storage storage, int k_blocks) {
  switch (storage) {
    case Storage::fp4_e8m0:
      return slices_fp4_e8m0(k_blocks);
    case Storage::fp4_e4m3:
      return slices_fp4_e4m3(k_blocks);
    case Storage::int4_g32:
      return slices_int4_g32(k_blocks);
    case Storage::int4_g128:
      return slices_int4_g128(k_blocks);
    default:
      return {};
  }
}

DecodeKernel strips_kernel(Storage storage) {
  switch (storage) {
    case Storage::fp4_e8m0:
      return strips_fp4_e8m0();
    case Storage::fp4_e4m3:
      return strips_fp4_e4m3();
    case Storage::fp8_scaled:
      return strips_fp8_scaled();
    case Storage::fp8_e8m0:
      return strips_fp8_e8m0();
    case Storage::int4_g32:
      return strips_int4_g32();
    case Storage::int4_g128:
      return strips_int4_g128();
    case Storage::int8_g32:
      return strips_int8_g32();
    case Storage::int8_g128:
      return strips_int8_g128();
    default:
      return {};
  }
}

bool fits_one_launch(const Call& call) {
  if (call.card.unowned == Unowned::untouched || call.card.lora.rank > 0 ||
      !is_small(call.packed.layout, {.tokens = call.card.input.rows,
                                     .top_k = call.card.top_k,
                                     .local_experts = call.spec().local_experts}))
    return false;
  const DecodeKernel kernel = kernel_for(call);
  if (kernel.function == nullptr) return false;
  // A card of another kind may run PTX for SM80, in which the kernel is empty, or have less shared memory.
  cudaFuncAttributes attributes{};
  int device = 0, most = 0;
  check(cudaFuncGetAttributes(&attributes, kernel.function), "looking at a kernel");
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "looking at the card");
  return attributes.ptxVersion >= 90 && kernel.shared <= static_cast<std::size_t>(most);
}

void enqueue_one_launch(const Call& call, const Buffers& b) {
  const ExpertsSpec& spec = call.spec();
  const Product up = up_product(call, b, stage_input(call, b, After::everything));
  const ExpertLayout& layout = call.packed.layout;
  const int parts = down_parts(layout.down.k_blocks);
  const Decode decode{
      .ids = call.card.ids,
      .expert_map = call.card.expert_map,
      .slots = static_cast<int>(call.slots()),
      .top_k = call.card.top_k,
      .experts = spec.experts,
      .local_experts = spec.local_experts,
      .rows_are_slots = call.apart(),
      .products = {up, down_product(call, b, up)},
      .parts = {{1, layout.up.k_blocks}, {parts, part_blocks(layout.down.k_blocks, parts)}},
      .counters = reinterpret_cast<DecodeCounters*>(call.packed.counters.get()) + (by_slices(call) ? 0 : 1),
      .weights = call.weighted() ? nullptr : call.card.weights,
      .tokens = call.card.input.rows,
      .width = spec.hidden,
      .out = call.card.output};
  const DecodeKernel kernel = kernel_for(call);
  check(start_together(kernel.function, &decode, {kernel.threads, kernel.shared}, call.card.stream),
        "starting a layer");
}

}  // namespace sluice::cuda
