// SPDX-License-Identifier: Apache-2.0
// One call in six steps: group the slots by expert; stage the inputs as float32 and, for kernels that read
// them, as digits; gate, up and activation into `mid`; its digits; down into `out`; combine each token's
// experts in the order of its ids. Adapters join gate, up and down where their sums are done. Every value is
// written by one task, and no sum depends on which tokens or threads it shared the call with.
#include "experts/cpu/common/forward.h"

#include <algorithm>
#include <cstdint>

#include "experts/cpu/common/activate.h"
#include "experts/cpu/common/bf16_pairs.h"
#include "experts/cpu/common/lora.h"
#include "experts/cpu/common/packed.h"
#include "experts/cpu/common/read_row.h"
#include "experts/cpu/common/to_digits.h"
#include "experts/cpu/common/to_int8.h"
#include "experts/cpu/common/workspace.h"
#include "routing/group.h"

namespace sluice::cpu {
namespace {

/// Weights a task reads at least: a shorter walk spends its time on getting the prefetchers going.
constexpr std::size_t kLeastTaskBytes = std::size_t{16} << 10;
/// And at most, so that the last task to finish is not waited for.
constexpr std::size_t kMostTaskBytes = std::size_t{512} << 10;
/// Columns of the output that a combining task writes.
constexpr int kCombineColumns = 1024;

struct Call {
  const KernelTable& table;
  const Packed& packed;
  const Forward& forward;
  Workspace work;
  Activate activate;
  int active = 0;  // experts

  const ExpertsSpec& spec() const { return packed.spec; }
  const ExpertLayout& layout() const { return packed.layout; }
  int top_k() const { return forward.routing.top_k; }
  int slots() const { return forward.routing.tokens * top_k(); }
};

/// An expert and its positions [first, last).
struct Group {
  const std::byte* expert;
  int first, last;
};

Group group(const Call& call, int index) {
  const std::int32_t local = call.work.active[index];
  return {call.packed.expert(local), call.work.offsets[local], call.work.offsets[local + 1]};
}

// ---- grouping

void group_slots(Call& call) {
  const Workspace& work = call.work;
  const int local_experts = call.spec().local_experts, slots = call.slots();
  const int used = group_by_expert(call.forward.routing, call.forward.expert_map, call.spec().experts,
                                   {work.offsets, static_cast<std::size_t>(local_experts) + 1},
                                   {work.slots, static_cast<std::size_t>(slots)});
  std::fill_n(work.positions, slots, -1);
  for (int p = 0; p < used; ++p) work.positions[work.slots[p]] = p;

  const auto tokens = [&](std::int32_t local) { return work.offsets[local + 1] - work.offsets[local]; };
  for (int local = 0; local < local_experts; ++local)
    if (tokens(local) > 0) work.active[call.active++] = local;
  // The longest work first, so that what is left at the end is short.
  std::sort(work.active, work.active + call.active, [&](std::int32_t a, std::int32_t b) {
    return tokens(a) != tokens(b) ? tokens(a) > tokens(b) : a < b;
  });
}

// ---- staging

/// The expert of a position, of those that are here.
std::int32_t local_of(const Call& call, int position) {
  return local_expert(call.forward.routing.ids[call.work.slots[position]], call.forward.expert_map,
                      call.spec().experts);
}

/// Copies a row into the order in which an expert's columns are packed.
void gather(const Call& call, const Stream& stream, int position, const float* row, float* out) {
  const std::int32_t* order = stream.order(call.packed.expert(local_of(call, position)));
  for (int i = 0; i < stream.padded_columns(); ++i) out[i] = order[i] < 0 ? 0.0f : row[order[i]];
}

// A row is read as terms of bf16 where it is as few as the stream's kernels know and its expert has tokens
// enough for them, else as digits where it and the stream have such, else as float32.

const IntegerKernels::OfPart& integer_kernels(const Call& call, const Stream& stream) {
  const IntegerKernels& kernels = call.table.*stream.format.integers;
  return stream.integers.minimums                ? kernels.minimums
         : stream.integers.part == kDigitColumns ? kernels.wholes
                                                 : kernels.halves;
}

Bf16Kernel bf16_kernel(const Call& call, const Stream& stream) {
  if (stream.pairs == 0) return {};
  if (stream.is_integer()) return integer_kernels(call, stream).bf16;
  return stream.format.bf16 == nullptr ? Bf16Kernel{} : call.table.bf16_pairs.*stream.format.bf16;
}

bool reads_bf16(const Call& call, const Stream& stream, const Staged& from, int position) {
  return from.bf16 != nullptr && from.terms[position] != 0 && bf16_kernel(call, stream).multiply != nullptr;
}

/// Columns that a stream's kernels read as digits, or as int8.
int digit_columns(const Call& call, const Stream& stream) {
  return call.table.rounds_to_int8 ? stream.int8_columns() : stream.digit_columns();
}

/// Columns of a row that are needed as digits for this stream.
int digit_columns(const Call& call, const Stream& stream, const Staged& from, int position) {
  return reads_bf16(call, stream, from, position) ? 0 : digit_columns(call, stream);
}

/// A row in the form that the kernels for so many tokens read. False where it has none.
bool to_digits(const Call& call, const float* row, int columns, bool words, std::byte* out) {
  if (call.table.rounds_to_int8) return to_int8(row, columns, reinterpret_cast<Int8Columns*>(out));
  return words ? to_digits(row, columns, reinterpret_cast<WordDigits*>(out))
               : to_digits(row, columns, reinterpret_cast<ByteDigits*>(out));
}

/// Gate, where it reads what up does, and up; or the stream alone.
struct Readers {
  const Stream *stream, *gate;
};

Readers readers(const Call& call, const Stream& stream, const Staged& to) {
  const bool shared = &to == &call.work.up && call.layout().shares_input();
  return {&stream, shared && call.layout().gate.pairs != 0 ? &call.layout().gate : nullptr};
}

const DigitKernels& digit_kernels(const Call& call, const Stream& stream) {
  return stream.is_integer() ? integer_kernels(call, stream).digits : call.table.*stream.format.digits;
}

/// Whether the tokens of an expert with `of_expert` are staged as words. Gate may read what is staged for up.
bool stages_words(const Call& call, const Stream& stream, int of_expert) {
  if (call.table.rounds_to_int8) return false;
  const ExpertLayout& layout = call.layout();
  const auto reads_words = [&](const Stream& one) {
    return one.digit_columns() == 0 || digit_kernels(call, one).several_reads_words;
  };
  const bool shared = &stream != &layout.down && layout.shares_input();
  return of_expert > 1 && reads_words(stream) &&
         (!shared || (reads_words(layout.gate) && reads_words(layout.up)));
}

/// Readers of one row all take terms, or none of them does.
void stage_bf16(const Call& call, const Readers& readers, const Staged& to, int position, int of_expert) {
  if (to.bf16 == nullptr) return;
  int columns = 0, from = 1;
  for (const Stream* stream : {readers.stream, readers.gate}) {
    if (stream == nullptr) continue;
    const Bf16Kernel kernel = bf16_kernel(call, *stream);
    if (kernel.multiply == nullptr) continue;
    columns = std::max(columns, stream->bf16_columns());
    from = std::max(from, kernel.from);
  }
  if (of_expert < from) columns = 0;
  const TermsOut out{to.bf16 + position * to.bf16_stride, to.bf16_term, call.table.bf16_pairs.terms};
  to.terms[position] = static_cast<std::int8_t>(
      columns == 0 ? 0 : to_bf16_terms(to.row(position), columns, readers.stream->bf16_order(), out));
}

/// What a stream reads of `row`, in the form that its expert's kernel reads. The row is zero from its end to
/// that of its padding.
void stage_for(const Call& call, const Stream& stream, const Staged& to, int position, const float* row) {
  if (stream.gathers()) gather(call, stream, position, row, to.row(position));
  const Readers all = readers(call, stream, to);
  const std::int32_t local = local_of(call, position);
  const int of_expert = call.work.offsets[local + 1] - call.work.offsets[local];
  stage_bf16(call, all, to, position, of_expert);
  const int columns = std::max(digit_columns(call, stream, to, position),
                               all.gate == nullptr ? 0 : digit_columns(call, *all.gate, to, position));
  if (columns == 0) return;
  const bool words = stages_words(call, stream, of_expert);
  std::byte* out = to.digits + position * to.digits_stride;
  to.fixed[position] = to_digits(call, to.row(position), columns, words, out);
}

/// A row of the input, for gate and up.
void stage_input(const Call& call, int position, const float* row) {
  stage_for(call, call.layout().up, call.work.up, position, row);
  if (!call.layout().shares_input()) stage_for(call, call.layout().gate, call.work.gate, position, row);
}

/// And a mid, for down.
void stage_mid(const Call& call, int position) {
  const float* row = call.work.mid + position * call.work.mid_stride;
  stage_for(call, call.layout().down, call.work.down, position, row);
}

/// What the token's adapter adds at this position, and A x of it for gate and up.
void stage_delta(const Call& call, int position, const float* row) {
  const Workspace& work = call.work;
  if (work.deltas == nullptr) return;
  const int slot = work.slots[position];
  work.deltas[position] = nullptr;
  if (call.forward.lora == nullptr) return;
  const LoraExpert* delta = call.forward.lora->delta(slot / call.top_k(), local_of(call, position));
  if (delta == nullptr) return;
  work.deltas[position] = delta;
  project(delta->gate, row, work.low_of(position));
  project(delta->up, row, work.low_of(position) + work.low_stride);
}

/// A mid, for down.
void stage_down_delta(const Call& call, int position) {
  const Workspace& work = call.work;
  if (const LoraExpert* delta = work.deltas[position])
    project(delta->down, work.mid + position * work.mid_stride, work.low_of(position));
}

/// One position: its token's input, weighted where the layer weights inputs, and zeros in the padding that
/// products will read.
void stage(const Call& call, int position) {
  const Workspace& work = call.work;
  const int slot = work.slots[position], hidden = call.spec().hidden;
  float* row = work.input + position * work.input_stride;
  read_row(call.forward.input, call.forward.row(slot / call.top_k()), row);
  if (call.spec().weight_on_input)
    for (int i = 0; i < hidden; ++i) row[i] *= call.forward.routing.weights[slot];
  std::fill(row + hidden, row + work.input_stride, 0.0f);
  stage_input(call, position, row);
  stage_delta(call, position, row);
  float* mid = work.mid + position * work.mid_stride;
  std::fill(mid + call.spec().intermediate, mid + work.mid_stride, 0.0f);
}

// ---- products

/// Where a product reads its tokens: positions [first, first + count) of an expert that has `of_expert`.
struct Tokens {
  const Staged& from;
  int first, count, of_expert;
};

/// Where the sums of a unit go.
struct Sums {
  float* gate;  // where gate and up are walked together
  float* out;
  std::size_t stride;
};

struct Form {
  enum { floats, digits, bf16 } kind;
  int terms = 0;  // of bf16

  friend bool operator==(const Form&, const Form&) = default;
};

Form form_of(const Call& call, const Stream& stream, const Staged& from, int position) {
  if (reads_bf16(call, stream, from, position)) return {Form::bf16, from.terms[position]};
  return {digit_columns(call, stream) != 0 && from.fixed[position] ? Form::digits : Form::floats};
}

/// Whether tokens are multiplied one at a time: an expert's only one, and where `several` reads words that
/// another matrix of the same input does not.
bool one_by_one(const Call& call, const Stream& stream, int of_expert) {
  return of_expert == 1 ||
         digit_kernels(call, stream).several_reads_words != stages_words(call, stream, of_expert);
}

Multiply kernel_for(const Call& call, const Stream& stream, const Tokens& tokens) {
  const auto form = form_of(call, stream, tokens.from, tokens.first).kind;
  if (form == Form::bf16) return bf16_kernel(call, stream).multiply;
  if (form == Form::digits) {
    const DigitKernels& digits = digit_kernels(call, stream);
    return one_by_one(call, stream, tokens.of_expert) ? digits.one : digits.several;
  }
  return stream.is_integer() ? integer_kernels(call, stream).multiply : call.table.*stream.format.multiply;
}

/// The sums of one unit of rows, by one kernel.
void multiply_alike(const Call& call, const Stream& stream, const std::byte* expert, int unit,
                    const Tokens& tokens, const Sums& sums) {
  const int lanes = call.layout().lanes;
  const bool together = stream.pairing == Pairing::gate_with_up;
  const int pairs = together ? 2 : 1;
  const Staged& from = tokens.from;
  const IntegerLayout& integers = stream.integers;
  const IntegerRecords records{integers.group_steps, integers.head_bytes(lanes), integers.number_bytes(lanes),
                               integers.scales, integers.zeros};
  const Multiply kernel = kernel_for(call, stream, tokens);
  kernel({.weights = expert + stream.offset + unit * pairs * stream.pair_bytes,
          .pair_bytes = stream.pair_bytes,
          .factors_offset = stream.format.layout.factors_offset(lanes, stream.columns),
          .pairs = pairs,
          .groups = stream.groups(),
          .integers = records,
          .input = from.row(tokens.first),
          .input_stride = from.stride,
          .digits = from.digits + tokens.first * from.digits_stride,
          .digits_stride = from.digits_stride,
          .bf16 = from.bf16 == nullptr ? nullptr : from.bf16 + tokens.first * from.bf16_stride,
          .bf16_stride = from.bf16_stride,
          .bf16_term = from.bf16_term,
          .bf16_terms = from.bf16 == nullptr ? 0 : from.terms[tokens.first],
          .tokens = tokens.count,
          .out = {together ? sums.gate : sums.out, together ? sums.out : sums.out + lanes},
          .out_stride = sums.stride,
          .out_step = static_cast<std::size_t>(lanes)});
}

/// The sums of one unit of rows. A token in another form takes another kernel than its neighbours.
void multiply(const Call& call, const Stream& stream, const std::byte* expert, int unit, const Tokens& tokens,
              const Sums& sums) {
  Tokens alike = tokens;
  for (int done = 0; done < tokens.count; done += alike.count) {
    alike.first = tokens.first + done;
    alike.count = 1;
    const Form form = form_of(call, stream, tokens.from, alike.first);
    const bool alone = form.kind == Form::digits && one_by_one(call, stream, tokens.of_expert);
    while (!alone && done + alike.count < tokens.count &&
           form_of(call, stream, tokens.from, alike.first + alike.count) == form)
      ++alike.count;
    multiply_alike(call, stream, expert, unit, alike,
                   {.gate = sums.gate == nullptr ? nullptr : sums.gate + done * sums.stride,
                    .out = sums.out + done * sums.stride,
                    .stride = sums.stride});
  }
}

void add_bias(const std::byte* bias, int count, float* to) {
  const auto* values = reinterpret_cast<const float*>(bias);
  for (int i = 0; i < count; ++i) to[i] += values[i];
}

/// Gate, up and activation of one unit, for some tokens of an expert.
void first_unit(const Call& call, const Group& group, int unit, int position, int count, float* scratch) {
  const ExpertLayout& layout = call.layout();
  const Workspace& work = call.work;
  const std::size_t rows = layout.unit_rows();
  float *gate = scratch, *up = scratch + kTokenChunk * rows;
  const int of_expert = group.last - group.first;
  if (layout.gate.pairs != 0)
    multiply(call, layout.gate, group.expert, unit, {work.gate, position, count, of_expert},
             {.gate = nullptr, .out = gate, .stride = rows});
  multiply(call, layout.up, group.expert, unit, {work.up, position, count, of_expert},
           {.gate = gate, .out = up, .stride = rows});

  const int row = unit * layout.unit_rows();
  const int valid = std::min(layout.unit_rows(), call.spec().intermediate - row);
  for (int m = 0; m < count; ++m, gate += rows, up += rows) {
    if (const LoraExpert* delta = work.delta(position + m)) {
      const float* low = work.low_of(position + m);
      add_delta(delta->gate, low, {row, valid}, gate);
      add_delta(delta->up, low + work.low_stride, {row, valid}, up);
    }
    if (call.spec().gate_up_bias) {
      if (call.spec().formats.gate)
        add_bias(group.expert + layout.gate_bias + row * sizeof(float), valid, gate);
      add_bias(group.expert + layout.up_bias + row * sizeof(float), valid, up);
    }
    call.activate({gate, up, work.mid + (position + m) * work.mid_stride + row, valid}, call.spec().params);
  }
}

/// Calls chunk(position, count) for positions [first, last) in chunks of about equal size.
template <class Chunk>
void for_chunks(const Group& group, Chunk chunk) {
  const int count = group.last - group.first, chunks = (count + kTokenChunk - 1) / kTokenChunk;
  const int step = (count + chunks - 1) / chunks;
  for (int p = group.first; p < group.last; p += step) chunk(p, std::min(step, group.last - p));
}

void first_product(const Call& call, const Group& group, int unit, int worker) {
  float* scratch = call.work.scratch + worker * call.work.scratch_stride;
  for_chunks(group,
             [&](int position, int count) { first_unit(call, group, unit, position, count, scratch); });
}

void second_product(const Call& call, const Group& group, int unit, int /*worker*/) {
  const Workspace& work = call.work;
  const int row = unit * call.layout().unit_rows();
  const int valid = std::min(call.layout().unit_rows(), call.spec().hidden - row);
  for_chunks(group, [&](int position, int count) {
    multiply(
        call, call.layout().down, group.expert, unit, {work.down, position, count, group.last - group.first},
        {.gate = nullptr, .out = work.out + position * work.out_stride + row, .stride = work.out_stride});
    for (int p = position; p < position + count; ++p)
      if (const LoraExpert* delta = work.delta(p))
        add_delta(delta->down, work.low_of(p), {row, valid}, work.out + p * work.out_stride + row);
  });
}

/// Units an expert is cut into, and the bytes of one.
struct Cut {
  int units;
  std::size_t unit_bytes;
};

/// Calls product(group, unit, worker) for every unit of every active expert.
template <class Product>
void for_units(const Call& call, const Cut& cut, Product product) {
  Executor& executor = *call.forward.executor;
  const std::size_t total = cut.unit_bytes * cut.units * call.active;
  // Eight tasks a worker, within the limits.
  const std::size_t wanted = total / (8 * static_cast<std::size_t>(executor.workers()));
  const std::size_t bytes = std::clamp(wanted, kLeastTaskBytes, kMostTaskBytes);
  const int step = static_cast<int>(std::clamp<std::size_t>(bytes / cut.unit_bytes, 1, cut.units));
  const int tasks = (cut.units + step - 1) / step;
  parallel_for(executor, tasks * call.active, [&](int task, int worker) {
    const Group expert = group(call, task / tasks);
    const int first = task % tasks * step;
    for (int unit = first; unit < std::min(first + step, cut.units); ++unit)
      product(call, expert, unit, worker);
  });
}

// ---- combining

/// Columns [first, last) of a token: the weighted sum of its experts, in the order of its ids.
void combine(const Call& call, int token, int first, int last) {
  const Workspace& work = call.work;
  const ExpertsSpec& spec = call.spec();
  float* out = call.forward.output + static_cast<std::size_t>(call.forward.output_row(token)) * spec.hidden;
  std::fill(out + first, out + last, 0.0f);
  for (int slot = token * call.top_k(); slot < (token + 1) * call.top_k(); ++slot) {
    const std::int32_t position = work.positions[slot];
    if (position < 0) continue;
    float* row = work.out + position * work.out_stride;
    if (spec.down_bias) {
      const std::int32_t local =
          local_expert(call.forward.routing.ids[slot], call.forward.expert_map, spec.experts);
      add_bias(call.packed.expert(local) + call.layout().down_bias + first * sizeof(float), last - first,
               row + first);
    }
    const float weight = spec.weight_on_input ? 1.0f : call.forward.routing.weights[slot];
    for (int i = first; i < last; ++i) out[i] += weight * row[i];
  }
}

}  // namespace

std::size_t workspace_bytes(const PackedExperts& packed, int tokens, int workers) {
  const std::int64_t slots = std::int64_t{tokens} * packed.spec.top_k;
  return make_workspace(static_cast<const Packed&>(packed), {slots, workers, 0}, nullptr).bytes;
}

std::size_t bf16_workspace_bytes(const PackedExperts& packed, int tokens, int workers) {
  const std::int64_t slots = std::int64_t{tokens} * packed.spec.top_k;
  return make_workspace(static_cast<const Packed&>(packed), {slots, workers, 1}, nullptr).bytes;
}

std::size_t bf16_terms_workspace_bytes(const PackedExperts& packed, int tokens, int workers) {
  const std::int64_t slots = std::int64_t{tokens} * packed.spec.top_k;
  return make_workspace(static_cast<const Packed&>(packed), {slots, workers, 3}, nullptr).bytes;
}

void forward(const KernelTable& table, const PackedExperts& experts, const Forward& f) {
  const int tokens = f.routing.tokens;
  if (tokens == 0) return;
  const auto& packed = static_cast<const Packed&>(experts);
  const ExpertLayout& layout = packed.layout;
  Call call{.table = table,
            .packed = packed,
            .forward = f,
            .work = make_workspace(packed,
                                   {.slots = std::int64_t{tokens} * f.routing.top_k,
                                    .workers = f.executor->workers(),
                                    .terms = table.bf16_pairs.terms},
                                   f.workspace.data()),
            .activate = activate(packed.spec.activation)};
  group_slots(call);

  parallel_for(*f.executor, call.work.offsets[packed.spec.local_experts],
               [&](int p, int) { stage(call, p); });
  for_units(call, {layout.first_units(), layout.first_unit_bytes()}, first_product);
  if (digit_columns(call, layout.down) != 0 || layout.down.gathers() || call.work.down.bf16 != nullptr)
    parallel_for(*f.executor, call.work.offsets[packed.spec.local_experts],
                 [&](int p, int) { stage_mid(call, p); });
  if (f.lora != nullptr && call.work.deltas != nullptr)
    parallel_for(*f.executor, call.work.offsets[packed.spec.local_experts],
                 [&](int p, int) { stage_down_delta(call, p); });
  for_units(call, {layout.down.pairs, layout.down.pair_bytes}, second_product);

  const int columns = (packed.spec.hidden + kCombineColumns - 1) / kCombineColumns;
  parallel_for(*f.executor, tokens * columns, [&](int task, int) {
    const int first = task % columns * kCombineColumns;
    combine(call, task / columns, first, std::min(first + kCombineColumns, packed.spec.hidden));
  });
}

}  // namespace sluice::cpu
