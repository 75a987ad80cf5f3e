// SPDX-License-Identifier: Apache-2.0
#include "testing/synthetic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <new>

#include "activation/activation.h"
#include "core/bits.h"
#include "core/error.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/formats.h"
#include "routing/scores.h"
#include "testing/draw.h"

namespace sluice::testing {
namespace {

struct Shape {
  std::string_view name;
  int hidden, intermediate, experts, top_k;
  ActivationParams params;
  bool bias;
  RouterSpec router;  // its experts and top_k are filled in
};

constexpr int kIntegerGroup = 128;  // what most published integers have
constexpr float kNone = std::numeric_limits<float>::infinity();
constexpr ActivationParams kGptOss{.limit = 7.0f, .slope = 1.702f, .shift = 1.0f};
constexpr RouterSpec kGptOssRouter{.score = Scores::of<score::SoftmaxSelected>(), .bias = true};
constexpr RouterSpec kV4Router{
    .score = Scores::of<score::SqrtSoftplus>(), .selection_bias = true, .renormalise = true, .scale = 1.5f};
constexpr RouterSpec kSoftmaxRouter{.score = Scores::of<score::Softmax>(), .renormalise = true};

// From the models' config.json.
constexpr std::array kShapes = {
    Shape{"gpt-oss-20b", 2880, 2880, 32, 4, kGptOss, true, kGptOssRouter},
    Shape{"gpt-oss-120b", 2880, 2880, 128, 4, kGptOss, true, kGptOssRouter},
    Shape{"deepseek-v4-flash", 4096, 2048, 256, 6, {.limit = 10.0f}, false, kV4Router},
    Shape{"qwen3-235b", 4096, 1536, 128, 8, {.limit = kNone}, false, kSoftmaxRouter},
    Shape{"qwen3-30b-a3b", 2048, 768, 128, 8, {.limit = kNone}, false, kSoftmaxRouter},
    Shape{"mixtral-8x7b", 4096, 14336, 8, 2, {.limit = kNone}, false, kSoftmaxRouter},
};

constexpr auto kShapeNames = [] {
  std::array<std::string_view, kShapes.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kShapes[i].name;
  return names;
}();

/// Turns eight random bytes into codes that are numbers of a modest size: `(bits & keep) | set`.
struct Mask {
  std::uint64_t keep, set;
};

constexpr std::uint64_t repeat16(std::uint64_t pattern) { return pattern * 0x0001000100010001u; }
constexpr std::uint64_t repeat32(std::uint64_t pattern) { return pattern * 0x0000000100000001u; }

/// Plain numbers of magnitude 2^-7 to 2^-3: any sign and mantissa, and of the exponent only its last two bits
/// are drawn.
Mask mask_of_codes(Format format) {
  if (format == Formats::of<format::F32>()) return {repeat32(0x81FFFFFF), repeat32(0x3C000000)};
  if (format == Formats::of<format::Bf16>()) return {repeat16(0x81FF), repeat16(0x3C00)};
  if (format == Formats::of<format::F16>()) return {repeat16(0x8FFF), repeat16(0x2000)};
  if (is_integer(format)) return {~std::uint64_t{0}, 0};
  // E4M3 without the top bit of its exponent is below 2 and never NaN. Any nibble is an E2M1.
  if (geometry(format).code_bits == 8) return {repeat16(0xBFBF), 0};
  return {~std::uint64_t{0}, 0};
}

/// Scales for which a row of 2880 codes times a unit input sums to about 1.
Mask mask_of_scales(Format format, DType dtype) {
  if (is_integer(format)) {  // drawn codes are 2^(bits - 2) or so: BF16 of 2^-(bits + 4) or -(bits + 3),
                             // times 1 to 4
    const std::uint64_t exponent = static_cast<unsigned>(123 - geometry(format).code_bits) & ~1u;
    return {repeat16(0x00FF), repeat16(exponent << 7)};
  }
  if (dtype == DType::f8_e8m0) return {repeat16(0x0101), repeat16(0x7878)};  // 2^-7 and 2^-6
  if (dtype == DType::f8_e4m3) return {repeat16(0x0F0F), repeat16(0x3030)};  // 0.5 to 1.875
  return {repeat32(0x00FFFFFF), repeat32(0x3C000000)};                       // float32, 2^-7 to 2^-5
}

DType scale_type(Format format) {
  if (format == Formats::of<format::Nvfp4>()) return DType::f8_e4m3;
  if (is_integer(format)) return DType::bf16;
  return accepts_scales(format, DType::f32) ? DType::f32 : DType::f8_e8m0;
}

using Bytes = std::unique_ptr<std::byte[]>;

/// Random bytes through a mask, uninitialised before: the worker that draws them is the first to touch the
/// pages.
Bytes draw_bytes(std::int64_t size, Mask mask, Draw& draw) {
  const std::int64_t words = (size + 7) / 8;
  Bytes bytes(new std::byte[static_cast<std::size_t>(words) * 8]);
  for (std::int64_t i = 0; i < words; ++i) store(bytes.get() + 8 * i, (draw.bits() & mask.keep) | mask.set);
  return bytes;
}

/// What `owner` holds for one expert: codes, scales, zero points and orders of matrices, and biases.
struct Owned {
  std::vector<Bytes> buffers;
};

/// The groups of the columns, in an order drawn.
Bytes draw_order(const WeightMatrix& matrix, Draw& draw) {
  const int group = matrix.integers.grouping.columns;
  Bytes bytes(new std::byte[static_cast<std::size_t>(4 * matrix.cols)]);
  for (std::int64_t c = 0; c < matrix.cols; ++c) {
    const auto its = static_cast<std::int32_t>(group == 0 ? 0 : c / group);
    const std::int64_t other = draw.below(c + 1);  // its place among the first c + 1
    if (other < c) store(bytes.get() + 4 * c, load<std::int32_t>(bytes.get() + 4 * other));
    store(bytes.get() + 4 * other, its);
  }
  return bytes;
}

/// What a matrix of integers has beside codes and scales: any bits are zero points.
void draw_integer_parts(WeightMatrix& matrix, Draw& draw, Owned& owned) {
  const format::Geometry g = geometry(matrix);
  IntegerParts& parts = matrix.integers;
  parts.codes.line_stride = matrix.row_stride;
  if (g.zero_points) {
    const std::int64_t groups = format::groups_of_row(matrix), line = line_bytes(g, matrix.rows);
    owned.buffers.push_back(draw_bytes(groups * line, {~std::uint64_t{0}, 0}, draw));
    parts.zeros = owned.buffers.back().get();
    parts.zeros_grid = {.along = PackedGrid::Along::column, .line_stride = line};
  }
  if (g.act_order) {
    owned.buffers.push_back(draw_order(matrix, draw));
    parts.column_groups = owned.buffers.back().get();
  }
}

/// Random bytes are blocks, but for their binary16 numbers: those become powers of two for which a row sums
/// to about 1.
void set_block_numbers(const WeightMatrix& matrix, std::byte* codes) {
  const format::Geometry& g = geometry(matrix.format);
  const format::BlockNumbers numbers = format::block_numbers(matrix.format);
  const bool scaled_scales = g.block_cols == format::kMostBlockCols;  // by 6 or 8 bits
  const int exponent = scaled_scales ? -9 - g.code_bits - (numbers.minimum < 0 ? 1 : 0) : -4 - g.code_bits;
  const std::int64_t blocks = matrix.rows * matrix.cols / g.block_cols;
  for (std::int64_t i = 0; i < blocks; ++i) {
    std::byte* block = codes + i * g.block_bytes;
    store(block + numbers.scale, format::float_to_f16(std::ldexp(1.0f, exponent)));
    if (numbers.minimum >= 0)
      store(block + numbers.minimum, format::float_to_f16(std::ldexp(1.0f, exponent + g.code_bits - 1)));
  }
}

WeightMatrix draw_matrix(WeightMatrix matrix, Draw& draw, Owned& owned) {
  const format::Geometry g = geometry(matrix);
  matrix.row_stride = line_bytes(g, matrix.cols);
  matrix.col_stride = g.code_bits / 8;
  owned.buffers.push_back(draw_bytes(matrix.rows * matrix.row_stride, mask_of_codes(matrix.format), draw));
  matrix.codes = owned.buffers.back().get();
  if (g.block_cols > 0) set_block_numbers(matrix, owned.buffers.back().get());
  if (g.scaled) {
    const format::ScaleShape shape = format::scale_shape(g, matrix.rows, matrix.cols);
    const DType dtype = scale_type(matrix.format);
    const std::int64_t bytes = bits(dtype) / 8;
    owned.buffers.push_back(
        draw_bytes(shape.rows * shape.cols * bytes, mask_of_scales(matrix.format, dtype), draw));
    matrix.scales = {owned.buffers.back().get(), dtype, shape.cols * bytes, bytes};
  }
  if (g.second_scale) matrix.second_scale = 1.0f / 128;
  if (g.integers) draw_integer_parts(matrix, draw, owned);
  return matrix;
}

VectorView draw_bias(int size, Draw& draw, Owned& owned) {
  owned.buffers.push_back(
      draw_bytes(2 * std::int64_t{size}, mask_of_codes(Formats::of<format::Bf16>()), draw));
  return {owned.buffers.back().get(), DType::bf16, size, 2};
}

ExpertWeights draw_expert(const ExpertsSpec& spec, std::uint64_t seed, Owned& owned) {
  Draw draw(seed);
  const MatrixFormats& formats = spec.formats;
  const auto wide = [&](Format format, const Grouping& grouping) {
    return WeightMatrix{
        .format = format, .rows = spec.intermediate, .cols = spec.hidden, .integers = {.grouping = grouping}};
  };
  WeightMatrix down = wide(formats.down, formats.down_grouping);
  std::swap(down.rows, down.cols);
  ExpertWeights expert{.gate = {},
                       .up = draw_matrix(wide(formats.up, formats.up_grouping), draw, owned),
                       .down = draw_matrix(down, draw, owned)};
  if (formats.gate) expert.gate = draw_matrix(wide(*formats.gate, formats.gate_grouping), draw, owned);
  if (spec.gate_up_bias && expert.gate) expert.gate_bias = draw_bias(spec.intermediate, draw, owned);
  if (spec.gate_up_bias) expert.up_bias = draw_bias(spec.intermediate, draw, owned);
  if (spec.down_bias) expert.down_bias = draw_bias(spec.hidden, draw, owned);
  return expert;
}

}  // namespace

std::span<const std::string_view> public_shapes() { return kShapeNames; }

LayerSpec public_shape(std::string_view name, Format format) {
  const Grouping grouping{.columns = is_integer(format) ? kIntegerGroup : 0};
  for (const Shape& shape : kShapes) {
    if (shape.name != name) continue;
    LayerSpec spec{.routed = {.hidden = shape.hidden,
                              .intermediate = shape.intermediate,
                              .experts = shape.experts,
                              .local_experts = shape.experts,
                              .top_k = shape.top_k,
                              .formats = {.gate = format,
                                          .up = format,
                                          .down = format,
                                          .gate_grouping = grouping,
                                          .up_grouping = grouping,
                                          .down_grouping = grouping},
                              .activation = Activations::of<activation::Silu>(),
                              .params = shape.params,
                              .gate_up_bias = shape.bias,
                              .down_bias = shape.bias},
                   .router = shape.router};
    spec.router.experts = shape.experts;
    spec.router.top_k = shape.top_k;
    return spec;
  }
  fail(ErrorKind::invalid_argument, {.code = "unknown_shape",
                                     .what = fmt::format("there is no layer shape \"{}\"", name),
                                     .todo = fmt::format("known are {}", fmt::join(kShapeNames, ", "))});
}

void set_group(LayerSpec& spec, int columns) {
  MatrixFormats& formats = spec.routed.formats;
  require(is_integer(formats.up), ErrorKind::invalid_argument, [&] {
    return ErrorInfo{.code = "no_groups",
                     .what = fmt::format("{} has no groups of columns to choose", formats.up.str()),
                     .todo = "Choose them for integers: int4, int8, ..."};
  });
  for (Grouping* grouping : {&formats.gate_grouping, &formats.up_grouping, &formats.down_grouping})
    grouping->columns = columns;
}

LayerWeights synthetic_weights(const LayerSpec& spec, std::uint64_t seed, Executor& executor) {
  const auto experts = static_cast<std::size_t>(spec.routed.local_experts);
  auto owned = std::make_shared<std::vector<Owned>>(experts);
  std::vector<std::optional<ExpertWeights>> drawn(experts);
  std::atomic<bool> failed = false;  // a task must not throw
  parallel_for(executor, spec.routed.local_experts, [&](int e, int) {
    const auto i = static_cast<std::size_t>(e);
    try {
      drawn[i] = draw_expert(spec.routed, seed * 1000003 + i, (*owned)[i]);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  });
  require(!failed, ErrorKind::out_of_memory, [&] {
    return ErrorInfo{
        .code = "out_of_memory",
        .what = fmt::format("cannot draw {} experts", experts),
        .why = fmt::format("they take {} bytes", experts_bytes(spec.routed, spec.routed.local_experts)),
        .todo = "choose a smaller shape or format"};
  });
  LayerWeights weights;
  for (const auto& expert : drawn) weights.routed.push_back(*expert);
  weights.owner = std::move(owned);
  return weights;
}

HiddenStates synthetic_hidden(int tokens, int width, std::uint64_t seed) {
  Draw draw(seed);
  const std::int64_t count = std::int64_t{tokens} * width;
  HiddenStates hidden{std::vector<std::byte>(static_cast<std::size_t>(2 * count)), {}};
  for (std::int64_t i = 0; i < count; ++i)
    store(hidden.rows.data() + 2 * i, format::float_to_bf16(static_cast<float>(draw.normal())));
  hidden.view = {hidden.rows.data(), DType::bf16, tokens, width, 2 * std::ptrdiff_t{width}};
  return hidden;
}

RandomRouting::RandomRouting(const ExpertsSpec& spec, int tokens, std::uint64_t seed)
    : state_(seed), tokens_(tokens), top_k_(spec.top_k) {
  for (std::int32_t e = 0; e < spec.experts; ++e) deck_.push_back(e);
  seen_.resize(deck_.size());
  const std::size_t slots = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(top_k_);
  ids_.resize(slots);
  weights_.assign(slots, 1.0f / static_cast<float>(top_k_));
}

Routing RandomRouting::next() {
  Draw draw(state_++);
  seen_.assign(seen_.size(), false);
  distinct_ = 0;
  std::size_t slot = 0;
  for (int t = 0; t < tokens_; ++t)
    for (std::size_t j = 0; j < static_cast<std::size_t>(top_k_); ++j) {  // the first top_k of a shuffle
      const auto rest = static_cast<std::int64_t>(deck_.size() - j);
      std::swap(deck_[j], deck_[j + static_cast<std::size_t>(draw.below(rest))]);
      const auto expert = static_cast<std::size_t>(deck_[j]);
      distinct_ += seen_[expert] ? 0 : 1;
      seen_[expert] = true;
      ids_[slot++] = deck_[j];
    }
  return {.ids = ids_.data(), .weights = weights_.data(), .tokens = tokens_, .top_k = top_k_};
}

}  // namespace sluice::testing
