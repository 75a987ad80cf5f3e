// SPDX-License-Identifier: Apache-2.0
// One call: slots are grouped by expert on the processor, rows and lists are copied, and the card stages the
// rows, multiplies, activates, multiplies and combines. A call whose intermediates would take more than
// kMostBytes runs in parts. Everything is ordered in the calling thread's own stream, so calls from several
// threads do not meet.
#include <algorithm>
#include <array>
#include <cstdint>

#include "experts/cuda/mma/multiply.h"
#include "experts/cuda/mma/packed.h"
#include "experts/cuda/mma/table.h"
#include "routing/group.h"

namespace sluice::cuda {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Hands out places, or only counts them where there is no memory.
class Places {
 public:
  explicit Places(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(std::size_t count) {
    std::byte* at = memory_ == nullptr ? nullptr : memory_ + end_;
    end_ = aligned(end_ + count * sizeof(T));
    return reinterpret_cast<T*>(at);
  }
  std::size_t end() const { return end_; }

 private:
  std::byte* memory_;
  std::size_t end_ = 0;
};

/// What the processor works out and the card reads: the same on both sides, copied in one piece.
struct Lists {
  std::int32_t* tokens;         // [slots] position -> token of the part
  float* input_weights;         // [slots] by position, where weights are on the input
  std::int32_t* positions;      // [slots] slot -> position, or -1
  float* weights;               // [slots] routing weights
  Tile *up_tiles, *down_tiles;  // [slots] at most, by width class

  Lists(Places& places, std::size_t slots)
      : tokens(places.take<std::int32_t>(slots)),
        input_weights(places.take<float>(slots)),
        positions(places.take<std::int32_t>(slots)),
        weights(places.take<float>(slots)),
        up_tiles(places.take<Tile>(slots)),
        down_tiles(places.take<Tile>(slots)) {}
};

/// On the processor alone.
struct Grouping {
  std::int32_t* offsets;  // [local_experts + 1]
  std::int32_t* slots;    // [slots] position -> slot

  Grouping(Places& places, int local_experts, std::size_t count)
      : offsets(places.take<std::int32_t>(static_cast<std::size_t>(local_experts) + 1)),
        slots(places.take<std::int32_t>(count)) {}
};

struct Part {
  const Packed& packed;
  const Forward& forward;
  int first, tokens;  // of the call's

  const ExpertsSpec& spec() const { return packed.spec; }
  std::size_t slots() const {
    return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(forward.routing.top_k);
  }
  Routing routing() const {
    const std::ptrdiff_t slot = std::ptrdiff_t{first} * forward.routing.top_k;
    return {forward.routing.ids + slot, forward.routing.weights + slot, tokens, forward.routing.top_k};
  }
};

/// Terms that hold an input of this type exactly.
int terms_of(DType dtype, bool weighted) {
  if (weighted || dtype == DType::f32) return 3;
  return dtype == DType::f16 ? 2 : 1;
}

/// The card's memory of a part.
struct Buffers {
  std::byte* rows;  // [tokens, hidden] as given
  Planes input, mid;
  float* down;  // [slots, hidden]
  float* out;   // [tokens, hidden]
  std::byte* lists;
  std::size_t bytes;
};

std::size_t list_bytes(std::size_t slots) {
  Places places(nullptr);
  Lists(places, slots);
  return places.end();
}

Buffers lay_out(const Part& part, std::byte* memory) {
  const ExpertsSpec& spec = part.spec();
  const ExpertLayout& layout = part.packed.layout;
  const std::size_t tokens = static_cast<std::size_t>(part.tokens), slots = part.slots();
  const std::size_t hidden = static_cast<std::size_t>(spec.hidden);
  const DType dtype = part.forward.input.dtype;
  Places places(memory);
  Buffers b{};
  b.rows = places.take<std::byte>(tokens * hidden * static_cast<std::size_t>(bits(dtype) / 8));
  b.input.stride = static_cast<std::size_t>(layout.up.columns());
  b.input.plane = (spec.weight_on_input ? slots : tokens) * b.input.stride;
  b.input.terms = terms_of(dtype, spec.weight_on_input);
  b.input.data = places.take<std::uint16_t>(b.input.plane * static_cast<std::size_t>(b.input.terms));
  b.mid.stride = static_cast<std::size_t>(layout.down.columns());
  b.mid.plane = slots * b.mid.stride;
  b.mid.terms = kMostTerms;
  b.mid.data = places.take<std::uint16_t>(b.mid.plane * kMostTerms);
  b.down = places.take<float>(slots * hidden);
  b.out = places.take<float>(tokens * hidden);
  b.lists = places.take<std::byte>(list_bytes(slots));
  b.bytes = places.end();
  return b;
}

// ---- lists

/// Cuts an expert's positions into tiles of at most `most` tokens and calls tile(width class, first, count).
template <class Visit>
void for_tiles(int first, int last, int widest_class, Visit tile) {
  for (int count = 0; first < last; first += count) {
    count = std::min(last - first, tile_tokens(widest_class));
    int width = 0;
    while (tile_tokens(width) < count) ++width;
    tile(width, first, count);
  }
}

/// The first tile of each width class, and their end.
using Classes = std::array<int, kWidths + 1>;

Classes write_tiles(const Part& part, const Grouping& grouping, int widest_class, Tile* tiles) {
  Classes first{}, next{};
  const int experts = part.spec().local_experts;
  for (int e = 0; e < experts; ++e)
    for_tiles(grouping.offsets[e], grouping.offsets[e + 1], widest_class,
              [&](int width, int, int) { ++first[static_cast<std::size_t>(width) + 1]; });
  for (std::size_t w = 1; w < first.size(); ++w) first[w] += first[w - 1];
  next = first;
  for (int e = 0; e < experts; ++e)
    for_tiles(grouping.offsets[e], grouping.offsets[e + 1], widest_class,
              [&](int width, int position, int count) {
                tiles[next[static_cast<std::size_t>(width)]++] = {e, position, count};
              });
  return first;
}

struct Counts {
  int positions;  // used
  Classes up, down;
};

/// Groups and fills the lists. How wide a tile may be depends on the terms of the product's input.
Counts write_lists(const Part& part, const Buffers& buffers, const Grouping& grouping, const Lists& lists) {
  const Routing routing = part.routing();
  const std::size_t slots = part.slots();
  const int used = group_by_expert(
      routing, part.forward.expert_map, part.spec().experts,
      {grouping.offsets, static_cast<std::size_t>(part.spec().local_experts) + 1}, {grouping.slots, slots});
  std::fill_n(lists.positions, slots, -1);
  std::copy_n(routing.weights, slots, lists.weights);
  for (int p = 0; p < used; ++p) {
    const std::int32_t slot = grouping.slots[p];
    lists.positions[slot] = p;
    lists.tokens[p] = slot / routing.top_k;
    lists.input_weights[p] = routing.weights[slot];
  }
  return {.positions = used,
          .up = write_tiles(part, grouping, widest(buffers.input.terms), lists.up_tiles),
          .down = write_tiles(part, grouping, widest(buffers.mid.terms), lists.down_tiles)};
}

// ---- copies

/// Calls run(first, count, row) for tokens of the part whose rows follow each other.
template <class Visit>
void for_runs(const Part& part, Visit run) {
  for (int token = 0; token < part.tokens;) {
    const int row = part.forward.row(part.first + token);
    int count = 1;
    while (token + count < part.tokens && part.forward.row(part.first + token + count) == row + count)
      ++count;
    run(token, count, row);
    token += count;
  }
}

void copy_in(const Part& part, std::byte* to, cudaStream_t stream) {
  const RowsView& input = part.forward.input;
  const std::size_t bytes =
      static_cast<std::size_t>(part.spec().hidden) * static_cast<std::size_t>(bits(input.dtype) / 8);
  const bool pitched = input.row_stride >= static_cast<std::ptrdiff_t>(bytes);
  for_runs(part, [&](int token, int count, int row) {
    const int step = pitched ? count : 1;
    for (int done = 0; done < count; done += step)
      check(cudaMemcpy2DAsync(to + static_cast<std::size_t>(token + done) * bytes, bytes,
                              input.data + std::ptrdiff_t{row + done} * input.row_stride,
                              pitched ? static_cast<std::size_t>(input.row_stride) : bytes, bytes,
                              static_cast<std::size_t>(step), cudaMemcpyHostToDevice, stream),
            "copying inputs");
  });
}

void copy_out(const Part& part, const float* from, cudaStream_t stream) {
  const std::size_t hidden = static_cast<std::size_t>(part.spec().hidden);
  for_runs(part, [&](int token, int count, int row) {
    check(cudaMemcpyAsync(part.forward.output + static_cast<std::size_t>(row) * hidden,
                          from + static_cast<std::size_t>(token) * hidden,
                          static_cast<std::size_t>(count) * hidden * sizeof(float), cudaMemcpyDeviceToHost,
                          stream),
          "copying results");
  });
}

// ---- products

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
    default:
      return multiply_f16(product, launch);
  }
}

void multiply_tiles(const Product& product, const Classes& classes, cudaStream_t stream) {
  for (int width = 0; width < kWidths; ++width) {
    const int first = classes[static_cast<std::size_t>(width)],
              last = classes[static_cast<std::size_t>(width) + 1];
    if (first == last) continue;
    Product part = product;
    part.tiles += first;
    check(multiply(part, {width, last - first, stream}), "starting a product");
  }
}

/// From the rows as given to the experts' results at their positions.
void products(const Part& part, const Buffers& b, const Lists& lists, const Counts& counts) {
  cudaStream_t const stream = cudaStreamPerThread;
  const ExpertsSpec& spec = part.spec();
  const ExpertLayout& layout = part.packed.layout;
  const bool weighted = spec.weight_on_input;
  check(stage({.rows = b.rows,
               .dtype = part.forward.input.dtype,
               .width = spec.hidden,
               .count = weighted ? counts.positions : part.tokens,
               .source = weighted ? lists.tokens : nullptr,
               .weights = weighted ? lists.input_weights : nullptr,
               .out = b.input},
              stream),
        "staging inputs");
  check(clear_tail(b.mid, counts.positions, spec.intermediate, stream), "clearing intermediates");
  Product product{.experts = part.packed.memory.get(),
                  .expert_bytes = layout.bytes,
                  .weights = layout.up,
                  .input = b.input,
                  .rows = weighted ? nullptr : lists.tokens,
                  .tiles = lists.up_tiles,
                  .down = false,
                  .epilogue = {.activation = spec.activation,
                               .params = spec.params,
                               .mid = b.mid,
                               .out = b.down,
                               .out_stride = static_cast<std::size_t>(spec.hidden)}};
  multiply_tiles(product, counts.up, stream);
  product.weights = layout.down;
  product.input = b.mid;
  product.rows = nullptr;
  product.tiles = lists.down_tiles;
  product.down = true;
  multiply_tiles(product, counts.down, stream);
}

void run_part(const Part& part) {
  cudaStream_t const stream = cudaStreamPerThread;
  const CallMemory memory(lay_out(part, nullptr).bytes, stream);
  const Buffers buffers = lay_out(part, memory.data());
  Places host_places(part.forward.workspace.data()), card_places(buffers.lists);
  const Lists host(host_places, part.slots()), card(card_places, part.slots());
  const Grouping grouping(host_places, part.spec().local_experts, part.slots());
  const Counts counts = write_lists(part, buffers, grouping, host);
  copy_in(part, buffers.rows, stream);
  check(cudaMemcpyAsync(buffers.lists, part.forward.workspace.data(), list_bytes(part.slots()),
                        cudaMemcpyHostToDevice, stream),
        "copying lists");
  if (counts.positions > 0) products(part, buffers, card, counts);
  check(combine({.rows = buffers.down,
                 .positions = card.positions,
                 .weights = part.spec().weight_on_input ? nullptr : card.weights,
                 .tokens = part.tokens,
                 .top_k = part.forward.routing.top_k,
                 .width = part.spec().hidden,
                 .out = buffers.out},
                stream),
        "starting the sum");
  copy_out(part, buffers.out, stream);
  check(cudaStreamSynchronize(stream), "a layer");
}

std::size_t workspace_bytes(const PackedExperts& packed, int tokens, int /*workers*/) {
  const std::size_t slots = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(packed.spec.top_k);
  Places places(nullptr);
  Lists(places, slots);
  Grouping(places, packed.spec.local_experts, slots);
  return places.end();
}

void run(const PackedExperts& experts, const Forward& forward) {
  const auto& packed = static_cast<const Packed&>(experts);
  const int tokens = forward.routing.tokens;
  if (tokens == 0) return;
  const DeviceScope scope;
  const std::size_t one = lay_out({packed, forward, 0, 1}, nullptr).bytes;
  const int step =
      static_cast<int>(std::clamp<std::size_t>(kMostBytes / one, 1, static_cast<std::size_t>(tokens)));
  for (int first = 0; first < tokens; first += step)
    run_part({packed, forward, first, std::min(step, tokens - first)});
}

constexpr MmaTable kTable{.pack = pack, .workspace_bytes = workspace_bytes, .run = run};

}  // namespace

const MmaTable* const kMmaTable = &kTable;

}  // namespace sluice::cuda
