// SPDX-License-Identifier: Apache-2.0
// Cuts the packing of all experts into tasks and reports progress.
#include "experts/cpu/common/pack.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "core/error.h"
#include "format/scales.h"

namespace sluice::cpu {
namespace {

/// Large enough that a task's start costs nothing, small enough that one large expert keeps all workers busy.
constexpr std::size_t kTaskBytes = std::size_t{1} << 20;

/// One stream of every expert, cut into `chunks` ranges of pairs.
struct Part {
  const Stream* stream;
  int chunks;
};

Part make_part(const Stream& stream) {
  const std::size_t wanted = (stream.bytes() + kTaskBytes - 1) / kTaskBytes;
  return {&stream, static_cast<int>(std::min<std::size_t>(wanted, stream.pairs))};
}

PairSource source_of(const ExpertLayout& layout, const Stream& stream, const ExpertWeights& weights) {
  if (&stream == &layout.down) return {{&weights.down, &weights.down}};
  if (&stream == &layout.gate) return {{&*weights.gate, &*weights.gate}};
  if (stream.pairing == Pairing::gate_with_up) return {{&*weights.gate, &weights.up}};
  return {{&weights.up, &weights.up}};
}

/// And zeros to the end of its last cache line.
void copy_bias(const VectorView& bias, std::byte* to) {
  for (std::int64_t i = 0; i < bias.size; ++i)
    store(to + sizeof(float) * i, format::read_number(bias.dtype, bias.data + i * bias.stride));
  for (std::int64_t i = bias.size; i % 16 != 0; ++i) store(to + sizeof(float) * i, 0.0f);
}

void pack_biases(const Packed& packed, const ExpertWeights& weights, std::byte* expert) {
  const ExpertLayout& layout = packed.layout;
  if (packed.spec.gate_up_bias) {
    if (weights.gate) copy_bias(weights.gate_bias, expert + layout.gate_bias);
    copy_bias(weights.up_bias, expert + layout.up_bias);
  }
  if (packed.spec.down_bias) copy_bias(weights.down_bias, expert + layout.down_bias);
}

/// Adds up what tasks did and tells the caller, one call at a time. The caller's function may throw, to give
/// up a load; a task may not, so the exception waits until all tasks are done.
class Meter {
 public:
  Meter(const Progress& progress, std::int64_t total) : progress_(progress), total_(total) {}

  void add(std::size_t bytes) noexcept {
    if (!progress_) return;
    const std::lock_guard<std::mutex> one_at_a_time(mutex_);
    done_ += static_cast<std::int64_t>(bytes);
    if (thrown_) return;
    try {
      progress_(done_, total_);
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }

  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  const Progress& progress_;
  const std::int64_t total_;
  std::mutex mutex_;
  std::int64_t done_ = 0;
  std::exception_ptr thrown_;
};

/// Packs the experts of `input` as the local ones from `first` on.
void pack_experts(Packed* packed, int lanes, const PackInput& input, int first) {
  const ExpertLayout& layout = packed->layout;
  const Part parts[] = {make_part(layout.gate), make_part(layout.up), make_part(layout.down)};
  const int chunks = parts[0].chunks + parts[1].chunks + parts[2].chunks;
  const std::size_t stream_bytes = layout.gate.bytes() + layout.up.bytes() + layout.down.bytes();
  const int experts = static_cast<int>(input.experts.size());
  Meter meter(input.progress, static_cast<std::int64_t>(experts * stream_bytes));
  std::vector<std::atomic<int>> left(input.read_one ? input.experts.size() : 0);  // chunks of each expert
  for (std::atomic<int>& count : left) count = chunks;

  parallel_for(input.executor, experts * chunks, [&](int task, int) {
    const int local = task / chunks;
    int chunk = task % chunks;
    if (chunk == 0) pack_biases(*packed, input.experts[local], packed->expert(first + local));
    const Part* part = parts;
    while (chunk >= part->chunks) chunk -= (part++)->chunks;
    const Stream& stream = *part->stream;
    const PairRange range{stream.pairs * chunk / part->chunks, stream.pairs * (chunk + 1) / part->chunks};
    const PairSource source = source_of(layout, stream, input.experts[local]);
    std::byte* const expert = packed->expert(first + local);
    if (stream.is_integer())
      pack_integers(stream, lanes, source, range, expert);
    else
      pack_pairs(stream, lanes, source, range, expert + stream.offset);
    if (!left.empty() && --left[local] == 0) input.read_one(local);
    meter.add((range.last - range.first) * stream.pair_bytes);
  });
  meter.rethrow();
}

/// Float32 holds what any scale is: room for it fits all.
void widen(SeenIntegers& seen, const Stream& stream) {
  if (stream.integers.scales == ScaleType::f32) seen.scales = ScaleType::f32;
}

/// What a layout takes from the weights, the scales' type and the sizes of listed groups, was settled when
/// the layer was packed.
void require_fit(const Packed& packed, const UpdateInput& input) {
  const ExpertLayout& here = packed.layout;
  SeenWeights seen = look_at({&input.weights, 1});
  widen(seen.gate, here.gate.pairs != 0 ? here.gate : here.up);
  widen(seen.up, here.up);
  widen(seen.down, here.down);
  const ExpertLayout needed = expert_layout(packed.spec, here.lanes, seen);
  const bool fits = needed.bytes == here.bytes && needed.gate.integers == here.gate.integers &&
                    needed.up.integers == here.up.integers && needed.up.pairing == here.up.pairing &&
                    needed.down.integers == here.down.integers;
  require(fits, ErrorKind::unsupported, [&] {
    return ErrorInfo{
        .code = "update_does_not_fit",
        .what = "the expert's integers cannot be packed where the old ones are",
        .why = "their scales have another type than the layer's, or its g_idx makes groups of other sizes",
        .todo = "Give scales of the type that the layer was packed with, or make a new Layer"};
  });
}

}  // namespace

std::unique_ptr<PackedExperts> pack(const Backend& backend, int lanes, const PackInput& input) {
  auto packed =
      std::make_unique<Packed>(backend, input.spec, expert_layout(input.spec, lanes, look_at(input.experts)));
  pack_experts(packed.get(), lanes, input, 0);
  return packed;
}

std::span<const std::byte> bytes(const PackedExperts& packed) {
  const auto& mine = static_cast<const Packed&>(packed);
  return {mine.expert(0), static_cast<std::size_t>(mine.bytes())};
}

std::unique_ptr<PackedExperts> adopt(const Backend& backend, int lanes, const PackInput& input,
                                     PackedBytes bytes) {
  const ExpertLayout layout = expert_layout(input.spec, lanes, look_at(input.experts));
  if (bytes.size != input.spec.local_experts * layout.bytes) return nullptr;
  auto packed = std::make_unique<Packed>(backend, input.spec, layout, std::move(bytes.data));
  for (int local = 0; local < input.spec.local_experts; ++local)
    for (const Stream* stream : {&layout.gate, &layout.up, &layout.down})
      if (stream->gathers())
        pack_order(*stream, source_of(layout, *stream, input.experts[local]), packed->expert(local));
  return packed;
}

void update(PackedExperts& packed, const UpdateInput& input) {
  auto& mine = static_cast<Packed&>(packed);
  require_fit(mine, input);
  pack_experts(&mine, mine.layout.lanes, {mine.spec, {&input.weights, 1}, {}, input.executor, {}},
               input.local);
}

std::int64_t packed_bytes(const ExpertsSpec& spec, int lanes) {
  return static_cast<std::int64_t>(spec.local_experts * expert_layout(spec, lanes).bytes);
}

}  // namespace sluice::cpu
