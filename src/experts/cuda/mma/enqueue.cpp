// SPDX-License-Identifier: Apache-2.0
// Slots are grouped by expert, rows become planes where they are not one already, and then come two products
// and the ordered sum of a token's experts.
#include "experts/cuda/mma/enqueue.h"

#include <algorithm>

#include "experts/cuda/mma/multiply.h"
#include "experts/cuda/mma/places.h"

namespace sluice::cuda {
namespace {

/// Up to so many tokens everything waits for memory, and an expert with many takes several narrow tiles,
/// which find its weights in L2.
constexpr int kNarrowTokens = 64;

constexpr int round_up(int value, int to) { return (value + to - 1) / to * to; }

/// Terms that hold an input of this type exactly. F16 needs two; there are kernels for one and three.
int terms_of(DType dtype, bool weighted) { return weighted || dtype != DType::bf16 ? kMostTerms : 1; }

struct Call {
  const Packed& packed;
  const CardCall& card;

  const ExpertsSpec& spec() const { return packed.spec; }
  std::size_t slots() const {
    return static_cast<std::size_t>(card.input.rows) * static_cast<std::size_t>(card.top_k);
  }
  bool weighted() const { return spec().weight_on_input; }
  bool gathered() const { return packed.layout.gathered != 0; }
  /// Every slot has an input of its own.
  bool apart() const { return weighted() || gathered(); }
  /// Columns of the up product, and what it makes.
  int hidden() const { return gathered() ? packed.layout.gathered : spec().hidden; }
  int intermediate() const { return packed.layout.up.rows; }
  /// Rows that copies of 16 bytes can read as they are.
  bool as_given() const {
    return !apart() && card.input.dtype == DType::bf16 && spec().hidden % 8 == 0 &&
           card.input.row_stride % 16 == 0 && reinterpret_cast<std::uintptr_t>(card.input.data) % 16 == 0;
  }
};

struct Buffers {
  Planes input, mid;
  float* down;              // [slots, hidden]
  std::int32_t* local;      // [slots]
  std::int32_t* positions;  // [slots]
  std::int32_t* rows;       // [slots]
  std::int32_t* counts;     // [2, kWidths]
  Tile* tiles;              // [2, kWidths, most_tiles]
  int most_tiles;
  std::size_t bytes;
};

/// The product that reads rows.
struct Reader {
  int columns;
  Storage storage;
};

Planes planes(Places& places, std::size_t rows, const Reader& reader, int terms) {
  const int width = reader.columns;
  const auto stride = static_cast<std::size_t>(round_up(width, terms == 1 ? 8 : kBlockColumns));
  Planes p{.data = nullptr,
           .plane = rows * stride,
           .stride = stride,
           .terms = terms,
           .columns = round_up(width, 8),
           .in_order = terms == 1 || is_integer(reader.storage)};
  p.data = places.take<std::uint16_t>(p.plane * static_cast<std::size_t>(terms));
  return p;
}

Buffers lay_out(const Call& call, std::byte* memory) {
  const ExpertsSpec& spec = call.spec();
  const std::size_t slots = call.slots();
  Places places(memory);
  Buffers b{};
  const ExpertLayout& layout = call.packed.layout;
  const std::size_t rows = call.apart() ? slots : static_cast<std::size_t>(call.card.input.rows);
  b.input = planes(places, rows, {call.hidden(), layout.up.storage},
                   terms_of(call.card.input.dtype, call.weighted()));
  b.mid = planes(places, slots, {call.intermediate(), layout.down.storage}, kMostTerms);
  b.down = places.take<float>(slots * static_cast<std::size_t>(spec.hidden));
  b.local = places.take<std::int32_t>(slots);
  b.positions = places.take<std::int32_t>(slots);
  b.rows = places.take<std::int32_t>(slots);
  b.counts = places.take<std::int32_t>(2 * kWidths);
  b.most_tiles = most_tiles(static_cast<int>(slots), spec.local_experts);
  b.tiles = places.take<Tile>(std::size_t{2} * kWidths * static_cast<std::size_t>(b.most_tiles));
  b.bytes = places.end();
  return b;
}

/// A class wide enough for twice the tokens that an expert has on average.
int widest_class(const Call& call, int terms) {
  if (call.card.input.rows <= kNarrowTokens) return 0;
  const std::int64_t twice = 2 * static_cast<std::int64_t>(call.slots()) / call.spec().local_experts;
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

Planes stage_input(const Call& call, const Buffers& b) {
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
              call.card.stream),
        "staging inputs");
  return b.input;
}

void products(const Call& call, const Buffers& b, const Planes& input) {
  const ExpertsSpec& spec = call.spec();
  const ExpertLayout& layout = call.packed.layout;
  Product product{.experts = call.packed.memory.get(),
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
                               .out_stride = static_cast<std::size_t>(spec.hidden)}};
  multiply_tiles(product, b, widest_class(call, input.terms), call.card.stream);
  product.weights = layout.down;
  product.input = b.mid;
  product.rows = nullptr;
  product.down = true;
  multiply_tiles(product, b, widest_class(call, b.mid.terms), call.card.stream);
}

}  // namespace

std::size_t card_bytes(const Packed& packed, const RowsView& input, int top_k) {
  CardCall card;
  card.input = input;
  card.top_k = top_k;
  return lay_out({packed, card}, nullptr).bytes;
}

void enqueue(const Packed& packed, const CardCall& card) {
  if (card.input.rows == 0) return;
  const Call call{packed, card};
  const Buffers b = lay_out(call, card.workspace);
  group_slots(call, b);
  products(call, b, stage_input(call, b));
  check(combine({.rows = b.down,
                 .local = b.local,
                 .weights = call.weighted() ? nullptr : card.weights,
                 .tokens = card.input.rows,
                 .top_k = card.top_k,
                 .width = packed.spec.hidden,
                 .out = card.output,
                 .leave_unowned = card.unowned == Unowned::untouched},
                card.stream),
        "starting the sum");
}

}  // namespace sluice::cuda
