// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/enqueue_call.h"

#include <algorithm>

#include "experts/cuda/mma/places.h"

namespace sluice::cuda {
namespace {

constexpr int round_up(int value, int to) { return (value + to - 1) / to * to; }

/// The product that reads rows.
struct Reader {
  int columns;
  Storage storage;
  bool few;  // tokens
};

Planes planes(Places& places, std::size_t rows, const Reader& reader, int terms) {
  const int width = reader.columns;
  const bool in_order = is_integer(reader.storage) || (terms == 1 && reader.few);
  const auto stride = static_cast<std::size_t>(round_up(width, in_order && terms == 1 ? 8 : kBlockColumns));
  Planes p{.data = nullptr,
           .plane = rows * stride,
           .stride = stride,
           .terms = terms,
           .columns = round_up(width, 8),
           .in_order = in_order};
  p.data = places.take<std::uint16_t>(p.plane * static_cast<std::size_t>(terms));
  return p;
}

/// Rows of the strips of either product.
std::size_t added_stride(const ExpertLayout& layout) {
  return static_cast<std::size_t>(std::max(layout.up.strips, layout.down.strips)) * kStripRows;
}

}  // namespace

int terms_of(DType dtype, bool weighted) { return weighted || dtype != DType::bf16 ? kMostTerms : 1; }

Buffers lay_out(const Call& call, std::byte* memory) {
  const ExpertsSpec& spec = call.spec();
  const std::size_t slots = call.slots();
  Places places(memory);
  Buffers b{};
  const ExpertLayout& layout = call.packed.layout;
  const std::size_t rows = call.apart() ? slots : static_cast<std::size_t>(call.card.input.rows);
  const bool few = call.card.input.rows <= kFewTokens;
  b.input = planes(places, rows, {call.hidden(), layout.up.storage, few},
                   terms_of(call.card.input.dtype, call.weighted()));
  b.mid = planes(places, slots, {call.intermediate(), layout.down.storage, few}, call.packed.mid_terms);
  const int parts = few && call.packed.one_launch ? down_parts(layout.down.k_blocks) : 1;
  b.down =
      places.take<float>(slots * static_cast<std::size_t>(parts) * static_cast<std::size_t>(spec.hidden));
  b.local = places.take<std::int32_t>(slots);
  b.positions = places.take<std::int32_t>(slots);
  b.rows = places.take<std::int32_t>(slots);
  b.counts = places.take<std::int32_t>(2 * kWidths + 1);
  b.most_tiles = most_tiles(static_cast<int>(slots), spec.local_experts);
  b.tiles = places.take<Tile>(std::size_t{2} * kWidths * static_cast<std::size_t>(b.most_tiles));
  if (call.card.lora.rank > 0) {
    b.low = places.take<float>(slots * 2 * static_cast<std::size_t>(call.card.lora.rank));
    b.added = places.take<float>(slots * added_stride(layout));
  }
  b.bytes = places.end();
  return b;
}

Planes stage_input(const Call& call, const Buffers& b, After after) {
  const RowsView& input = call.card.input;
  if (call.as_given())
    return {.data = reinterpret_cast<std::uint16_t*>(const_cast<std::byte*>(input.data)),
            .plane = 0,
            .stride = static_cast<std::size_t>(input.row_stride) / 2,
            .terms = 1,
            .columns = call.spec().hidden,
            .in_order = true};
  const ExpertLayout& layout = call.packed.layout;
  check(stage({.rows = input.data,
               .row_stride = input.row_stride,
               .dtype = input.dtype,
               .width = call.hidden(),
               .count = call.apart() ? static_cast<int>(call.slots()) : input.rows,
               .slots_per_row = call.apart() ? call.card.top_k : 1,
               .weights = call.weighted() ? call.card.weights : nullptr,
               .out = b.input,
               .local = call.gathered() || call.card.unowned == Unowned::untouched ? b.local : nullptr,
               .orders = call.gathered() ? call.packed.memory.get() + layout.order : nullptr,
               .expert_bytes = layout.bytes},
              call.card.stream, after),
        "staging inputs");
  return b.input;
}

Product up_product(const Call& call, const Buffers& b, const Planes& input) {
  const ExpertsSpec& spec = call.spec();
  const ExpertLayout& layout = call.packed.layout;
  return {.experts = call.packed.memory.get(),
          .expert_bytes = layout.bytes,
          .weights = layout.up,
          .input = input,
          .slots = b.positions,
          .rows = call.apart() ? b.positions : b.rows,
          .tiles = nullptr,
          .tile_count = nullptr,
          .down = false,
          .epilogue = {.activation = spec.activation,
                       .params = spec.params,
                       .mid = b.mid,
                       .out = b.down,
                       .out_stride = static_cast<std::size_t>(spec.hidden),
                       .added = b.added,
                       .added_stride = added_stride(layout)}};
}

Product down_product(const Call& call, const Buffers& b, const Product& up) {
  Product down = up;
  down.weights = call.packed.layout.down;
  down.input = b.mid;
  down.rows = nullptr;
  down.down = true;
  return down;
}

void combine_slots(const Call& call, const float* down, const std::int32_t* local) {
  check(combine({.rows = down,
                 .local = local,
                 .weights = call.weighted() ? nullptr : call.card.weights,
                 .tokens = call.card.input.rows,
                 .top_k = call.card.top_k,
                 .width = call.spec().hidden,
                 .out = call.card.output,
                 .leave_unowned = call.card.unowned == Unowned::untouched},
                call.card.stream),
        "starting the sum");
}

}  // namespace sluice::cuda
