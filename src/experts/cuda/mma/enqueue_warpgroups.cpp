// SPDX-License-Identifier: Apache-2.0
// A call of many tokens on warpgroups: four launches.
#include <algorithm>
#include <cmath>

#include "experts/cuda/mma/enqueue_call.h"
#include "experts/cuda/mma/places.h"
#include "experts/cuda/mma/warpgroup.h"

namespace sluice::cuda {
namespace {

struct WarpgroupBuffers {
  Chunks input, mid;
  float* down;            // [slots, hidden]
  std::int32_t* local;    // [slots]
  std::int32_t* slot_of;  // [positions]
  std::int32_t* counts;   // [2]
  Tile* tiles;            // [2, most_tiles]
  int most_tiles;
  std::size_t bytes;
};

Chunks chunks(Places& places, std::size_t positions, int terms, const StripsLayout& reader) {
  Chunks c{.data = nullptr,
           .positions = positions,
           .terms = terms,
           .blocks = reader.k_blocks,
           .order = lane_order(reader.storage)};
  c.data = places.take<std::uint16_t>(c.elements());
  return c;
}

WarpgroupBuffers lay_out_warpgroups(const Call& call, std::byte* memory) {
  const ExpertLayout& layout = call.packed.layout;
  const int experts = call.spec().local_experts;
  const std::size_t positions = positions_for(call.slots(), experts);
  Places places(memory);
  WarpgroupBuffers b{};
  b.input = chunks(places, positions, terms_of(call.card.input.dtype, call.weighted()), layout.up);
  b.mid = chunks(places, positions, call.packed.mid_terms, layout.down);
  b.down = places.take<float>(call.slots() * static_cast<std::size_t>(call.spec().hidden));
  b.local = places.take<std::int32_t>(call.slots());
  b.slot_of = places.take<std::int32_t>(positions);
  b.counts = places.take<std::int32_t>(2);
  b.most_tiles = most_tiles(static_cast<int>(call.slots()), experts);
  b.tiles = places.take<Tile>(std::size_t{2} * static_cast<std::size_t>(b.most_tiles));
  b.bytes = places.end();
  return b;
}

/// What a product reads, and of what it is.
struct ProductOf {
  const Chunks& input;
  const StripsLayout& weights;
};
ProductOf up_of(const Call& call, const WarpgroupBuffers& b) { return {b.input, call.packed.layout.up}; }
ProductOf down_of(const Call& call, const WarpgroupBuffers& b) { return {b.mid, call.packed.layout.down}; }

/// Rows where the intermediate is rounded to bf16, which is a hundred times what they lose.
SumsOf sums_of(const Call& call, const ProductOf& product) {
  const bool rounded = call.packed.mid_terms == 1;
  return rounded && product.input.terms == 1 && scales_in_weights(product.weights.storage) ? SumsOf::rows
                                                                                           : SumsOf::chains;
}

/// Tiles of so many columns that an expert has, chosen alike: the sum of the chances that it has another.
double expected_tiles(double average, int columns) {
  double tiles = 1 - std::exp(-average);
  for (int i = 1; i * columns < 2 * average + 4 * columns; ++i)
    tiles += std::erfc((i * columns + 0.5 - average) / std::sqrt(2 * average)) / 2;
  return tiles;
}

/// Columns of the largest tiles of chains: enough for nearly every expert to be one. What is not used of a
/// stage is not there for others.
int chain_columns(double average, int terms) {
  const int wanted = static_cast<int>(average + 2 * std::sqrt(average));
  return std::clamp((wanted + kColumnStep - 1) / kColumnStep * kColumnStep, kColumnStep, most_columns(terms));
}

/// Of rows, which take the time of the largest tile: those that are done first. In clocks of a processor's
/// quarter and of 16 rows times 128 columns of weights: tensor cores take 4 for a token, and unpacking the
/// weights some 160, as measured from 16 to 160 columns. The two overlap, but add up in power. The tests of
/// conformance know what is chosen (EdgesTest.ExpertsOfEveryAverageSize): change them together.
int row_columns(double average) {
  constexpr double kToken = 4, kUnpack = 160;
  const auto clocks = [&](int columns) {
    return expected_tiles(average, columns) * (kToken * columns + kUnpack);
  };
  return *std::ranges::min_element(kRowColumns, {}, clocks);
}

int most_of(const Call& call, const ProductOf& product) {
  // With a map the slots are those of all experts, wherever they are.
  const int experts = call.card.expert_map != nullptr ? call.spec().experts : call.spec().local_experts;
  const double average = double(call.slots()) / std::max(1, experts);
  return sums_of(call, product) == SumsOf::rows ? row_columns(average)
                                                : chain_columns(average, product.input.terms);
}

WarpgroupProduct product_of(const Call& call, const WarpgroupBuffers& b, bool down) {
  const ExpertsSpec& spec = call.spec();
  const ProductOf product = down ? down_of(call, b) : up_of(call, b);
  return {.experts = call.packed.memory.get(),
          .expert_bytes = call.packed.layout.bytes,
          .weights = product.weights,
          .input = product.input,
          .slot_of = b.slot_of,
          .tiles = b.tiles + (down ? b.most_tiles : 0),
          .tile_count = b.counts + (down ? 1 : 0),
          .down = down,
          .sums = sums_of(call, product),
          .activation = spec.activation,
          .params = spec.params,
          .mid = b.mid,
          .out = b.down,
          .out_stride = static_cast<std::size_t>(spec.hidden),
          .stages = 0,
          .stage_bytes = 0};
}

Arrange arrange_of(const Call& call, const WarpgroupBuffers& b) {
  const RowsView& input = call.card.input;
  const ExpertLayout& layout = call.packed.layout;
  return {.ids = call.card.ids,
          .expert_map = call.card.expert_map,
          .slots = static_cast<int>(call.slots()),
          .top_k = call.card.top_k,
          .experts = call.spec().experts,
          .local_experts = call.spec().local_experts,
          .most = {most_of(call, up_of(call, b)), most_of(call, down_of(call, b))},
          .local = b.local,
          .slot_of = b.slot_of,
          .counts = b.counts,
          .tiles = b.tiles,
          .most_tiles = b.most_tiles,
          .rows = input.data,
          .row_stride = input.row_stride,
          .dtype = input.dtype,
          .width = call.hidden(),
          .weights = call.weighted() ? call.card.weights : nullptr,
          .orders = call.gathered() ? call.packed.memory.get() + layout.order : nullptr,
          .expert_bytes = layout.bytes,
          .out = b.input};
}

}  // namespace

/// Few tokens take the narrow kernel, unless the experts are few, too: on an H200 it was
/// 10 % faster at two slots an expert and half as fast at sixteen. What one launch computes has fewer
/// (is_small).
bool takes_warpgroups(const Call& call) {
  constexpr std::size_t kSlotsOfExpert = 4;
  const auto experts = static_cast<std::size_t>(call.spec().local_experts);
  const bool many = call.card.input.rows > kFewTokens ||
                    (call.slots() > kFewSlots && call.slots() > kSlotsOfExpert * experts);
  return call.packed.warpgroups && many && experts <= kMostArrangedExperts && call.card.lora.rank == 0;
}

std::size_t warpgroup_bytes(const Call& call) { return lay_out_warpgroups(call, nullptr).bytes; }

void enqueue_warpgroups(const Call& call) {
  const WarpgroupBuffers b = lay_out_warpgroups(call, call.card.workspace);
  const Arrange lists = arrange_of(call, b);
  cudaStream_t const stream = call.card.stream;
  check(arrange(lists, stream), "arranging a layer's inputs");
  check(start_warpgroups(product_of(call, b, false), lists.most[0], stream), "starting a product");
  check(start_warpgroups(product_of(call, b, true), lists.most[1], stream), "starting a product");
  combine_slots(call, b.down, b.local);
}

}  // namespace sluice::cuda
