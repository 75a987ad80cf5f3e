// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/common/repack.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "core/bits.h"
#include "core/error.h"
#include "experts/cuda/common/repack_integers.h"
#include "experts/cuda/common/strip.h"
#include "experts/cuda/common/unpack.h"
#include "format/e4m3.h"
#include "format/e8m0.h"
#include "format/formats.h"
#include "format/fp4_blocks.h"
#include "format/scales.h"

namespace sluice::cuda {
namespace {

/// The multiplier's exponent of a row's largest power of two, which counts as 2^0: 126 for the pattern of
/// e2m1 and 120 for that of e4m3, plus bf16's bias.
constexpr int kFp4Top = 126 + 127, kFp8Top = 120 + 127;
/// How far below it another may lie so that the smallest value, 2^-1 or 2^-9 times that, is still a bf16.
constexpr int kFp4Reach = 132, kFp8Reach = 124;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint16_t code_at(const Row& row, Storage storage, std::int64_t column) {
  if (value_bits(storage) == 4)
    return format::fp4_code(*row.matrix, storage == Storage::fp4_e8m0 ? 32 : 16, row.row, column);
  const std::byte* at =
      row.matrix->codes + row.row * row.matrix->row_stride + column * row.matrix->col_stride;
  return value_bits(storage) == 8 ? load<std::uint8_t>(at) : load<std::uint16_t>(at);
}

bool is_zero(Storage storage, std::uint16_t code) {
  return (code & (value_bits(storage) == 4 ? 7u : 0x7Fu)) == 0;
}

// ---- what a row says about all of its blocks

struct RowScale {
  float factor = 1;
  int top = 0;  // the largest e8m0 code of a group that is not all zeros
};

/// Whether columns [first, first + count) of the row hold anything but zeros.
bool any_value(const Row& row, Storage storage, std::int64_t first, std::int64_t count) {
  const std::int64_t last = std::min(first + count, row.matrix->cols);
  for (std::int64_t c = first; c < last; ++c)
    if (!is_zero(storage, code_at(row, storage, c))) return true;
  return false;
}

RowScale powers_of_row(const Row& row, Storage storage) {
  RowScale scale{.top = -1};
  bool nan = false;
  for (std::int64_t first = 0; first < row.matrix->cols; first += 32) {
    const int code = row.scale_byte(32, first);
    nan = nan || code == 255;
    if (code > scale.top && any_value(row, storage, first, 32)) scale.top = code;
  }
  scale.top = std::max(scale.top, 0);
  scale.factor = nan ? kNan : format::e8m0_to_float(static_cast<std::uint8_t>(scale.top));
  return scale;
}

bool has_nan_scale(const Row& row) {
  for (std::int64_t first = 0; first < row.matrix->cols; first += 16)
    if ((row.scale_byte(16, first) & 0x7Fu) == 0x7Fu) return true;
  return false;
}

bool has_nan_code(const Row& row) {
  for (std::int64_t c = 0; c < row.matrix->cols; ++c)
    if ((code_at(row, Storage::fp8_scaled, c) & 0x7Fu) == 0x7Fu) return true;
  return false;
}

float coarse_factor(const Row& row) {
  const WeightMatrix& matrix = *row.matrix;
  if (matrix.format == Formats::of<format::Fp8Block128>()) return 1;
  return format::scale_at(matrix.scales, matrix.format == Formats::of<format::Fp8Channel>() ? row.row : 0, 0);
}

/// A NaN among a row's codes or scales makes all its sums NaN, whatever the inputs are.
RowScale scale_of_row(const Row& row, Storage storage) {
  RowScale scale;
  if (!row) return scale;
  if (storage == Storage::fp4_e8m0 || storage == Storage::fp8_e8m0) scale = powers_of_row(row, storage);
  if (storage == Storage::fp4_e4m3) scale.factor = has_nan_scale(row) ? kNan : row.matrix->second_scale;
  if (storage == Storage::fp8_scaled) scale.factor = coarse_factor(row);
  if (is_integer(storage)) scale.factor = kIntegerBack;
  if (value_bits(storage) == 8 && !is_integer(storage) && has_nan_code(row)) scale.factor = kNan;
  return scale;
}

// ---- scales of a block

struct BlockAt {
  Storage storage;
  std::int64_t first;  // column
  int index;           // of the strip's blocks
};

/// The multiplier's exponent for one group of 32; nothing where the group is too small for the row.
std::uint8_t power_byte(const Row& row, const RowScale& scale, const BlockAt& at, int group, bool& too_far) {
  const int top = at.storage == Storage::fp4_e8m0 ? kFp4Top : kFp8Top;
  const int reach = at.storage == Storage::fp4_e8m0 ? kFp4Reach : kFp8Reach;
  const std::int64_t first = at.first + 32 * group;
  if (!row || first >= row.matrix->cols || !any_value(row, at.storage, first, 32))
    return static_cast<std::uint8_t>(top);
  const int below = scale.top - row.scale_byte(32, first);
  too_far = too_far || below > reach;
  return static_cast<std::uint8_t>(top - std::min(below, reach));
}

/// The byte of an e4m3 scale's multiplier, any where the group has no columns. A negative scale's sign and a
/// zero go into the codes.
std::uint8_t e4m3_byte(const Row& row, const BlockAt& at, int group, Codes& codes, int strip_row) {
  const std::int64_t first = at.first + 16 * group;
  if (!row || first >= row.matrix->cols) return 0;
  const std::uint8_t code = row.scale_byte(16, first);
  const float scale = format::e4m3_to_float(code & 0x7Fu);
  for (int c = 16 * group; c < 16 * (group + 1); ++c) {
    std::uint16_t& value = codes[strip_row][c];
    value = scale == 0 ? 0 : static_cast<std::uint16_t>(value ^ ((code & 0x80u) != 0 ? 8u : 0u));
  }
  if (scale == 0 || scale != scale) return 0;
  return static_cast<std::uint8_t>(((bits_as<std::uint32_t>(scale * 0x1p118f) >> 16) & 0x0FFFu) >> 4);
}

/// Rows 8 * half to 8 * half + 7 lie in one tile of 128.
float tile_scale(const Strip& strip, const BlockAt& at, int half) {
  const Row& row = strip[8 * half];
  if (!row || row.matrix->format != Formats::of<format::Fp8Block128>()) return 1;
  return format::scale_at(row.matrix->scales, row.row / 128, at.index);
}

void write_scales(const Strip& strip, const std::array<RowScale, kStripRows>& scales, const BlockAt& at,
                  Codes& codes, std::byte* out, bool& too_far) {
  if (at.storage == Storage::fp8_scaled) {
    for (int half = 0; half < 2; ++half) store<float>(out + 4 * half, tile_scale(strip, at, half));
    store<std::uint64_t>(out + 8, 0);
    return;
  }
  if (scale_bytes(at.storage) == 0) return;
  const bool powers = at.storage != Storage::fp4_e4m3;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int half = 0; half < 2; ++half) {
      const int r = lane / 4 + 8 * half, t = lane % 4;
      if (powers) {
        out[2 * lane + half] = std::byte(power_byte(strip[r], scales[r], at, t, too_far));
      } else {
        for (int part = 0; part < 2; ++part)
          out[4 * lane + 2 * half + part] = std::byte(e4m3_byte(strip[r], at, 2 * t + part, codes, r));
      }
    }
}

// ---- values of a block

std::uint32_t two(const Codes& codes, Place at, int width) {
  return codes[at.row][at.column] | std::uint32_t{codes[at.row][at.column + 1]} << width;
}

/// Sixteen e2m1 of two steps as the registers that unpack_fp4 gives.
void write_fp4(const Codes& codes, std::byte* out) {
  const auto pattern = [](std::uint32_t code) { return (code & 8u) << 12 | (code & 7u) << 6; };
  for (int pair = 0; pair < kSteps / 2; ++pair)
    for (int lane = 0; lane < kLanes; ++lane) {
      std::uint32_t registers[8];
      for (int i = 0; i < 8; ++i) {
        const Place at = place(Storage::fp4_e8m0, lane, 2 * pair + i / 4, i % 4);
        registers[i] = pattern(codes[at.row][at.column]) | pattern(codes[at.row][at.column + 1]) << 16;
      }
      const WordPair words = pack_fp4(registers);
      std::byte* to = out + pair / 2 * 512 + lane * 16 + pair % 2 * 8;
      store(to, words.first);
      store(to + 4, words.second);
    }
}

void write_bytes(const Codes& codes, std::byte* out) {
  for (int step = 0; step < kSteps; ++step)
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i)
        store(out + step / 2 * 512 + lane * 16 + step % 2 * 8 + 2 * i,
              static_cast<std::uint16_t>(two(codes, place(Storage::fp8_e8m0, lane, step, i), 8)));
}

void write_halves(const Codes& codes, std::byte* out) {
  for (int step = 0; step < kSteps; ++step)
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i)
        store(out + step * 512 + lane * 16 + 4 * i, two(codes, place(Storage::bf16, lane, step, i), 16));
}

// ---- strips

Codes codes_of(const Strip& strip, const BlockAt& at) {
  Codes codes{};
  for (int r = 0; r < kStripRows; ++r) {
    if (!strip[r]) continue;
    const std::int64_t last = std::min<std::int64_t>(kBlockColumns, strip[r].matrix->cols - at.first);
    for (int c = 0; c < last; ++c) codes[r][c] = code_at(strip[r], at.storage, at.first + c);
  }
  return codes;
}

/// What fills a StripsLayout.
struct Source {
  const WeightMatrix* upper;  // gate, or the only matrix
  const WeightMatrix* lower;  // up where it is paired
  const VectorView* upper_bias;
  const VectorView* lower_bias;
  const ColumnOrder* orders[2];        // of columns of upper and lower, where they are integers
  std::span<const std::int32_t> rows;  // the row of each of the layout's, -1 for none; empty: the same
};

/// False where a row's powers of two lie too far apart.
bool write_strip(const StripsLayout& layout, const Source& source, const Strip& strip, int index,
                 std::byte* expert) {
  std::array<RowScale, kStripRows> scales;
  bool too_far = false;
  for (int r = 0; r < kStripRows; ++r) {
    scales[r] = scale_of_row(strip[r], layout.storage);
    store(expert + layout.factors + 4 * (std::int64_t{index} * kStripRows + r), scales[r].factor);
  }
  std::byte* block = expert + layout.blocks + index * layout.strip_bytes();
  if (is_integer(layout.storage)) {
    write_integer_strip(layout, strip, source.orders, block);
    return true;
  }
  for (int k = 0; k < layout.k_blocks; ++k, block += block_bytes(layout.storage)) {
    const BlockAt at{layout.storage, std::int64_t{k} * kBlockColumns, k};
    Codes codes = codes_of(strip, at);
    write_scales(strip, scales, at, codes, block + value_bytes(layout.storage), too_far);
    const int bits = value_bits(layout.storage);
    (bits == 4 ? write_fp4 : bits == 8 ? write_bytes : write_halves)(codes, block);
  }
  return !too_far;
}

Row row_of(const StripsLayout& layout, const Source& source, int strip, int r) {
  const bool lower = layout.paired && r >= 8;
  std::int64_t row = layout.paired ? strip * (kStripRows / 2) + r % 8 : strip * kStripRows + r;
  if (row >= layout.rows) return {};
  if (!source.rows.empty()) {
    if (row >= std::ssize(source.rows)) return {};
    row = source.rows[static_cast<std::size_t>(row)];
  }
  return row < 0 ? Row{} : Row{lower ? source.lower : source.upper, row};
}

float bias_of(const StripsLayout& layout, const Source& source, const Row& row, int r) {
  const VectorView* bias = layout.paired && r >= 8 ? source.lower_bias : source.upper_bias;
  if (!row || !*bias) return 0;
  return format::read_number(bias->dtype, bias->data + row.row * bias->stride);
}

bool write_strips(const StripsLayout& layout, const Source& source, std::byte* expert, Executor& executor) {
  std::atomic<bool> held = true;
  parallel_for(executor, layout.strips, [&](int index, int) {
    Strip strip;
    for (int r = 0; r < kStripRows; ++r) {
      strip[r] = row_of(layout, source, index, r);
      store(expert + layout.bias + 4 * (std::int64_t{index} * kStripRows + r),
            bias_of(layout, source, strip[r], r));
    }
    if (!write_strip(layout, source, strip, index, expert)) held = false;
  });
  return held;
}

}  // namespace

void repack(const ExpertsSpec& spec, const ExpertLayout& layout, const ExpertWeights& expert,
            std::byte* memory, Executor& executor) {
  std::fill_n(memory, layout.bytes, std::byte{0});
  const bool paired = spec.formats.gate.has_value();
  const ExpertOrders orders(spec, expert);
  const Source up{.upper = paired ? &*expert.gate : &expert.up,
                  .lower = &expert.up,
                  .upper_bias = paired ? &expert.gate_bias : &expert.up_bias,
                  .lower_bias = &expert.up_bias,
                  .orders = {paired ? &orders.gate : &orders.up, &orders.up},
                  .rows = orders.down.columns};
  const Source down{.upper = &expert.down,
                    .lower = nullptr,
                    .upper_bias = &expert.down_bias,
                    .lower_bias = nullptr,
                    .orders = {&orders.down, &orders.down},
                    .rows = {}};
  if (layout.gathered != 0)
    std::ranges::copy(orders.input(layout.gathered), reinterpret_cast<std::int32_t*>(memory + layout.order));
  if (layout.channels != 0) {
    auto* const channels = reinterpret_cast<std::int32_t*>(memory + layout.channels);
    std::fill_n(channels, layout.up.rows, -1);
    std::ranges::copy(orders.down.columns, channels);
  }
  const bool held =
      write_strips(layout.up, up, memory, executor) && write_strips(layout.down, down, memory, executor);
  require(held, ErrorKind::unsupported, [] {
    return ErrorInfo{.code = "scales_too_far_apart",
                     .what = "a row of weights has scales too far apart for the tensor cores",
                     .why = "values that are 2^124 times smaller than others of their row are no bfloat16",
                     .todo = "Run this layer on a backend of the processor"};
  });
}

}  // namespace sluice::cuda
