// SPDX-License-Identifier: Apache-2.0
// One call with memory of the processor: rows and lists are copied, the card computes, results are copied
// back. A call whose intermediates would take more than kMostBytes runs in parts. Everything is ordered in
// the calling thread's own stream, so calls from several threads do not meet.
#include <algorithm>
#include <cstdint>

#include "experts/cuda/mma/card_layer.h"
#include "experts/cuda/mma/enqueue.h"
#include "experts/cuda/mma/lora_part.h"
#include "experts/cuda/mma/places.h"
#include "experts/cuda/mma/table.h"

namespace sluice::cuda {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

/// What the card reads beside the rows: the same on both sides, copied in one piece.
struct Lists {
  std::int32_t* ids;  // [slots]
  float* weights;     // [slots]
  std::int32_t* map;  // [experts]
  std::size_t bytes;

  Lists(std::byte* memory, std::size_t slots, int experts) {
    Places places(memory);
    ids = places.take<std::int32_t>(slots);
    weights = places.take<float>(slots);
    map = places.take<std::int32_t>(static_cast<std::size_t>(experts));
    bytes = places.end();
  }
};

struct Part {
  const Packed& packed;
  const Forward& forward;
  int first, tokens;  // of the call's
  LoraPart lora = {};

  const ExpertsSpec& spec() const { return packed.spec; }
  int lora_rank() const { return forward.lora == nullptr ? 0 : spec().lora_rank; }
  std::size_t hidden() const { return static_cast<std::size_t>(spec().hidden); }
  std::size_t row_bytes() const { return hidden() * static_cast<std::size_t>(bits(forward.input.dtype) / 8); }
  std::size_t slots() const {
    return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(forward.routing.top_k);
  }
};

/// The card's memory of a part.
struct Buffers {
  RowsView rows;  // dense
  float* output;  // [tokens, hidden]
  std::byte* lists;
  std::byte* adapters;
  std::byte* workspace;
  std::size_t bytes;
};

Buffers lay_out(const Part& part, std::byte* memory) {
  const std::size_t tokens = static_cast<std::size_t>(part.tokens);
  Places places(memory);
  Buffers b{};
  b.rows = {places.take<std::byte>(tokens * part.row_bytes()), part.forward.input.dtype, part.tokens,
            part.spec().hidden, static_cast<std::ptrdiff_t>(part.row_bytes())};
  b.output = places.take<float>(tokens * part.hidden());
  b.lists = places.take<std::byte>(Lists(nullptr, part.slots(), part.spec().experts).bytes);
  b.adapters = places.take<std::byte>(part.lora.card_bytes());
  b.workspace =
      places.take<std::byte>(card_bytes(part.packed, b.rows, part.forward.routing.top_k, part.lora_rank()));
  b.bytes = places.end();
  return b;
}

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

void copy_rows(const Part& part, std::byte* to, cudaStream_t stream) {
  const RowsView& input = part.forward.input;
  const std::size_t bytes = part.row_bytes();
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

void copy_lists(const Part& part, std::byte* to, cudaStream_t stream) {
  const Routing& routing = part.forward.routing;
  const std::ptrdiff_t slot = std::ptrdiff_t{part.first} * routing.top_k;
  const Lists lists(part.forward.workspace.data(), part.slots(), part.spec().experts);
  std::copy_n(routing.ids + slot, part.slots(), lists.ids);
  std::copy_n(routing.weights + slot, part.slots(), lists.weights);
  std::ranges::copy(part.forward.expert_map, lists.map);
  check(cudaMemcpyAsync(to, part.forward.workspace.data(), lists.bytes, cudaMemcpyHostToDevice, stream),
        "copying lists");
}

void copy_out(const Part& part, const float* from, cudaStream_t stream) {
  for_runs(part, [&](int token, int count, int row) {
    check(cudaMemcpyAsync(part.forward.output + static_cast<std::size_t>(row) * part.hidden(),
                          from + static_cast<std::size_t>(token) * part.hidden(),
                          static_cast<std::size_t>(count) * part.hidden() * sizeof(float),
                          cudaMemcpyDeviceToHost, stream),
          "copying results");
  });
}

void run_part(const Part& part) {
  cudaStream_t const stream = cudaStreamPerThread;
  const CallMemory memory(lay_out(part, nullptr).bytes, stream);
  const Buffers b = lay_out(part, memory.data());
  copy_rows(part, memory.data(), stream);
  copy_lists(part, b.lists, stream);
  const Lists lists(b.lists, part.slots(), part.spec().experts);
  enqueue(part.packed, {.input = b.rows,
                        .top_k = part.forward.routing.top_k,
                        .ids = lists.ids,
                        .weights = lists.weights,
                        .expert_map = part.forward.expert_map.empty() ? nullptr : lists.map,
                        .output = b.output,
                        .workspace = b.workspace,
                        .stream = stream,
                        .lora = part.lora.copy(b.adapters, stream)});
  copy_out(part, b.output, stream);
  check(cudaStreamSynchronize(stream), "a layer");
}

std::size_t workspace_bytes(const PackedExperts& packed, int tokens, int /*workers*/) {
  const std::size_t slots = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(packed.spec.top_k);
  return Lists(nullptr, slots, packed.spec.experts).bytes + LoraPart::workspace_bytes(packed.spec, slots);
}

/// The most tokens from `first` on, up to `most`, whose adapters take no more than kMostBytes.
Part part_of(const Packed& packed, const Forward& forward, int first, int most) {
  Part part{packed, forward, first, most};
  if (part.lora_rank() == 0) return part;
  for (;; part.tokens = (part.tokens + 1) / 2) {
    std::byte* const lists =
        forward.workspace.data() + Lists(nullptr, part.slots(), packed.spec.experts).bytes;
    part.lora = LoraPart(packed.spec, forward, {first, part.tokens}, lists);
    if (part.tokens == 1 || part.lora.card_bytes() <= kMostBytes) return part;
  }
}

void run(const PackedExperts& experts, const Forward& forward) {
  const auto& packed = static_cast<const Packed&>(experts);
  const int tokens = forward.routing.tokens;
  if (tokens == 0) return;
  const DeviceScope scope(packed.device());
  const auto bytes = [&](int count) { return lay_out({packed, forward, 0, count}, nullptr).bytes; };
  int step =
      static_cast<int>(std::clamp<std::size_t>(kMostBytes / bytes(1), 1, static_cast<std::size_t>(tokens)));
  // Many tokens may take more each than one does.
  while (step > 1 && bytes(step) > kMostBytes) step /= 2;
  for (int first = 0; first < tokens;) {
    const Part part = part_of(packed, forward, first, std::min(step, tokens - first));
    run_part(part);
    first += part.tokens;
  }
}

constexpr MmaTable kTable{
    .pack = pack, .workspace_bytes = workspace_bytes, .run = run, .on_device = on_device};

}  // namespace

const MmaTable* const kMmaTable = &kTable;

}  // namespace sluice::cuda
