// SPDX-License-Identifier: Apache-2.0
// Slots are grouped by expert, rows become planes where they are not one already, and then come two products
// and the ordered sum of a token's experts; or all of it in one launch.
#include "experts/cuda/mma/enqueue.h"

#include <algorithm>

#include "experts/cuda/mma/enqueue_call.h"

namespace sluice::cuda {
namespace {

/// A class wide enough for twice the tokens that an expert has on average.
int widest_class(const Call& call, int terms) {
  if (call.card.input.rows <= kFewTokens) return 0;
  const std::int64_t twice =
      2 * static_cast<std::int64_t>(call.slots()) / std::max(1, call.spec().local_experts);
  int width = 1;
  while (width < widest(terms) && tile_tokens(width) < twice) ++width;
  return width;
}

cudaError_t multiply(const Product& product, const Launch& launch) {
  switch (product.weights.storage) {
    case Storage::fp4_e8m0:
      return multiply_fp4_e8m0(product, launch);
    case Storage::fp4_e4m3:
      return multiply_fp4_e4m3(product, launch);
    case Storage::fp8_scaled:
      return multiply_fp8_scaled(product, launch);
    case Storage::fp8_e8m0:
      return multiply_fp8_e8m0(product, launch);
    case Storage::bf16:
      return multiply_bf16(product, launch);
    case Storage::int4_g32:
      return multiply_int4_g32(product, launch);
    case Storage::int4_g128:
      return multiply_int4_g128(product, launch);
    case Storage::int8_g32:
      return multiply_int8_g32(product, launch);
    case Storage::int8_g128:
      return multiply_int8_g128(product, launch);
    case Storage::q4_k:
      return multiply_q4_k(product, launch);
    case Storage::q5_k:
      return multiply_q5_k(product, launch);
    case Storage::q6_k:
      return multiply_q6_k(product, launch);
    default:
      return multiply_f16(product, launch);
  }
}

/// All classes of one of the two products.
void multiply_tiles(Product product, const Buffers& b, int widest, cudaStream_t stream) {
  const int which = product.down ? 1 : 0;
  for (int width = 0; width <= widest; ++width) {
    const int list = which * kWidths + width;
    product.tiles = b.tiles + std::ptrdiff_t{list} * b.most_tiles;
    product.tile_count = b.counts + list;
    check(multiply(product, {width, stream}), "starting a product");
  }
}

void group_slots(const Call& call, const Buffers& b) {
  check(group({.ids = call.card.ids,
               .expert_map = call.card.expert_map,
               .slots = static_cast<int>(call.slots()),
               .experts = call.spec().experts,
               .local_experts = call.spec().local_experts,
               .up_widest = widest_class(call, b.input.terms),
               .down_widest = widest_class(call, b.mid.terms),
               .local = b.local,
               .top_k = call.card.top_k,
               .positions = b.positions,
               .rows = b.rows,
               .counts = b.counts,
               .tiles = b.tiles,
               .most_tiles = b.most_tiles},
              call.card.stream),
        "starting the grouping");
}

void products(const Call& call, const Buffers& b, const Planes& input) {
  const Product up = up_product(call, b, input), down = down_product(call, b, up);
  enqueue_adapters(call, b, up);
  multiply_tiles(up, b, widest_class(call, input.terms), call.card.stream);
  enqueue_adapters(call, b, down);
  multiply_tiles(down, b, widest_class(call, b.mid.terms), call.card.stream);
}

}  // namespace

std::size_t card_bytes(const Packed& packed, const RowsView& input, int top_k, int lora_rank) {
  CardCall card;
  card.input = input;
  card.top_k = top_k;
  card.lora.rank = lora_rank;
  const Call call{packed, card};
  if (takes_warpgroups(call)) return warpgroup_bytes(call);
  // A call may have fewer adapters than it could, and then take another way.
  const std::size_t without = lora_rank == 0 ? 0 : card_bytes(packed, input, top_k, 0);
  return std::max(without, lay_out(call, nullptr).bytes);
}

void enqueue(const Packed& packed, const CardCall& card) {
  if (card.input.rows == 0) return;
  const Call call{packed, card};
  if (takes_warpgroups(call)) return enqueue_warpgroups(call);
  const Buffers b = lay_out(call, card.workspace);
  if (packed.one_launch && fits_one_launch(call)) return enqueue_one_launch(call, b);
  group_slots(call, b);
  products(call, b, stage_input(call, b, After::ours));
  combine_slots(call, b.down, b.local);
}

}  // namespace sluice::cuda
