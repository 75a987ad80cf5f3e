// SPDX-License-Identifier: Apache-2.0
#include "tests/cpu/drawn_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>

#include "core/bits.h"
#include "core/devices.h"
#include "experts/reference/definition.h"
#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/e4m3.h"
#include "format/f16.h"
#include "format/ggml_blocks.h"
#include "format/integers.h"
#include "format/scales.h"
#include "testing/exact_blocks.h"
#include "tests/cpu/portable.h"

namespace sluice::testing {
namespace {

std::int64_t round_up(std::int64_t size, std::int64_t unit) { return (size + unit - 1) / unit * unit; }

/// Codes that are the values around zero points that leave room for -1 and 1.
void set_integers(format::Encoded& encoded, const std::vector<float>& values, Draw& draw) {
  const WeightMatrix& matrix = encoded.matrix;
  const int most = (1 << format::integer_bits(matrix)) - 2;
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    for (std::int64_t g = 0; matrix.integers.grouping.zero_points && g < format::groups_of_row(matrix); ++g)
      format::set_zero(encoded, r, g, static_cast<unsigned>(1 + draw.below(most)));
    for (std::int64_t c = 0; c < matrix.cols; ++c) {
      const unsigned zero = format::zero_of(matrix, r, format::group_of_column(matrix, c));
      const float value = values[static_cast<std::size_t>(r * matrix.cols + c)];
      format::set_code(encoded, r, c, zero + static_cast<unsigned>(static_cast<int>(value)));
    }
  }
}

/// Codes that are the values, whatever the encoder's recipe would have done.
void set_codes(format::Encoded& encoded, const std::vector<float>& values, Draw& draw) {
  const WeightMatrix& matrix = encoded.matrix;
  if (is_integer(matrix.format)) return set_integers(encoded, values, draw);
  if (is_ggml_block(matrix.format)) return write_blocks(draw, values, {.least = 0.5f, .count = 3}, encoded);
  const int bits = geometry(matrix.format).code_bits;
  if (bits > 8) return;
  std::fill(encoded.codes.begin(), encoded.codes.end(), std::byte{0});
  for (std::int64_t r = 0; r < matrix.rows; ++r)
    for (std::int64_t c = 0; c < matrix.cols; ++c) {
      const float value = values[static_cast<std::size_t>(r * matrix.cols + c)];
      std::byte* row = encoded.codes.data() + r * matrix.row_stride;
      if (bits == 8)
        row[c] = std::byte{format::float_to_e4m3(value)};
      else
        row[c / 2] |= std::byte{format::float_to_e2m1(value)} << (c % 2 * 4);
    }
}

/// Scales of 1/2, 1 and 2, and a second scale of 1/2.
void set_scales(format::Encoded& encoded, Draw& draw) {
  WeightMatrix& matrix = encoded.matrix;
  if (is_ggml_block(matrix.format)) return;  // they are in the codes
  const auto shape = format::scale_shape(geometry(matrix), matrix.rows, matrix.cols);
  for (std::int64_t i = 0; i < shape.rows; ++i)
    for (std::int64_t j = 0; j < shape.cols; ++j) {
      const int exponent = static_cast<int>(draw.below(3)) - 1;
      std::byte* at = encoded.scales.data() + i * matrix.scales.row_stride + j * matrix.scales.col_stride;
      if (matrix.scales.dtype == DType::f32)
        store(at, static_cast<float>(std::ldexp(1.0, exponent)));
      else if (matrix.scales.dtype == DType::bf16)
        store(at, format::float_to_bf16(static_cast<float>(std::ldexp(1.0, exponent))));
      else if (matrix.scales.dtype == DType::f8_e4m3)
        store(at, static_cast<std::uint8_t>(0x38 + 8 * exponent));
      else
        store(at, static_cast<std::uint8_t>(127 + exponent));
    }
  if (geometry(matrix.format).second_scale) matrix.second_scale = 0.5f;
}

/// How a matrix is stored.
struct Storage {
  Format format;
  Grouping grouping;
};

/// encode() of floats wants whole groups of columns, backends do not: draws whole groups and shows the first
/// `cols` columns.
WeightMatrix draw_matrix(DrawnLayer& layer, const Storage& storage, std::int64_t rows, std::int64_t cols,
                         Numbers numbers, Draw& draw) {
  const Format format = storage.format;
  const format::Geometry& g = geometry(format);
  const int group = std::max(g.group_cols, g.block_cols);
  const std::int64_t whole = is_integer(format) ? cols : round_up(cols, group == 0 ? 2 : group);
  std::vector<float> values(static_cast<std::size_t>(rows * whole));
  for (float& value : values)
    value = static_cast<float>(numbers == Numbers::exact ? static_cast<double>(draw.below(3) - 1)
                                                         : draw.normal());
  layer.matrices.push_back(std::make_unique<format::Encoded>(
      is_integer(format) ? encode(format, storage.grouping, values.data(), rows, whole)
                         : encode(format, values.data(), rows, whole)));
  format::Encoded& encoded = *layer.matrices.back();
  if (numbers == Numbers::exact) {
    set_codes(encoded, values, draw);
    set_scales(encoded, draw);
  }
  encoded.matrix.cols = cols;
  return encoded.matrix;
}

VectorView draw_bias(DrawnLayer& layer, int size, Draw& draw) {
  layer.biases.push_back(std::make_unique<std::vector<float>>());
  auto& values = *layer.biases.back();
  for (int i = 0; i < size; ++i) values.push_back(static_cast<float>(draw.below(7) - 3));
  return {reinterpret_cast<const std::byte*>(values.data()), DType::f32, size, sizeof(float)};
}

float read_input(const DrawnCall& call, std::size_t index) {
  const std::size_t width = bits(call.dtype) / 8;
  return format::read_number(call.dtype, call.hidden.data() + index * width);
}

void store_input(DrawnCall& call, std::size_t index, float value) {
  std::byte* at = call.hidden.data() + index * (bits(call.dtype) / 8);
  if (call.dtype == DType::bf16)
    store(at, format::float_to_bf16(value));
  else if (call.dtype == DType::f16)
    store(at, format::float_to_f16(value));
  else
    store(at, value);
}

struct FreeLines {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};
using Lines = std::unique_ptr<std::byte, FreeLines>;

}  // namespace

const Backend& backend_named(std::string_view name) {
  for (const Backend* backend :
       {&kPortable8, &kPortable16, &kPortableInt8, &kPortableAmx, &kPortableAmxTiles})
    if (backend->name == name) return *backend;
  for (const Backend* backend : backends())
    if (backend->name == name) return *backend;
  throw std::invalid_argument("no backend of that name: " + std::string(name));
}

std::string why_not(const Backend& backend) {
  if (backend.kernels().empty()) return "this build has no kernels of it";
  const Instructions absent = backend.can.uses.minus(detect().has);
  return absent.empty() ? "" : "this machine lacks " + absent.str();
}

Format format_named(std::string_view name) { return Format::parse(name).value(); }
Activation activation_named(std::string_view name) { return Activation::parse(name).value(); }

ExpertsSpec plain_spec(Format format, int hidden, int intermediate) {
  const int block = std::max(geometry(format).block_cols, 1);
  return {.hidden = static_cast<int>(round_up(hidden, block)),
          .intermediate = static_cast<int>(round_up(intermediate, block)),
          .experts = 4,
          .local_experts = 4,
          .top_k = 2,
          .formats = {format, format, format},
          .activation = activation_named("silu")};
}

ExpertsSpec full_spec(Format format, int hidden, int intermediate) {
  ExpertsSpec spec = plain_spec(format, hidden, intermediate);
  spec.params = {.limit = 8, .slope = 1e30f, .shift = 1};
  spec.gate_up_bias = spec.down_bias = true;
  return spec;
}

DrawnLayer draw_layer(const ExpertsSpec& spec, Numbers numbers, std::uint64_t seed) {
  DrawnLayer layer{.spec = spec};
  const MatrixFormats& formats = spec.formats;
  Draw draw(seed);
  for (int e = 0; e < spec.local_experts; ++e) {
    std::optional<WeightMatrix> gate;
    if (spec.formats.gate)
      gate = draw_matrix(layer, {*formats.gate, formats.gate_grouping}, spec.intermediate, spec.hidden,
                         numbers, draw);
    const WeightMatrix up =
        draw_matrix(layer, {formats.up, formats.up_grouping}, spec.intermediate, spec.hidden, numbers, draw);
    const WeightMatrix down = draw_matrix(layer, {formats.down, formats.down_grouping}, spec.hidden,
                                          spec.intermediate, numbers, draw);
    layer.experts.push_back({.gate = gate, .up = up, .down = down});
    if (spec.gate_up_bias) {
      if (gate) layer.experts.back().gate_bias = draw_bias(layer, spec.intermediate, draw);
      layer.experts.back().up_bias = draw_bias(layer, spec.intermediate, draw);
    }
    if (spec.down_bias) layer.experts.back().down_bias = draw_bias(layer, spec.hidden, draw);
  }
  return layer;
}

ExpertsSpec grouped(ExpertsSpec spec, const Grouping& grouping) {
  if (spec.formats.gate) spec.formats.gate_grouping = grouping;
  spec.formats.up_grouping = spec.formats.down_grouping = grouping;
  return spec;
}

WeightMatrix& DrawnLayer::view(std::size_t index) {
  const std::size_t each = spec.formats.gate ? 3 : 2;
  ExpertWeights& expert = experts[index / each];
  const std::size_t kind = index % each + 3 - each;
  return kind == 0 ? *expert.gate : kind == 1 ? expert.up : expert.down;
}

void retype_scales(DrawnLayer& layer, std::size_t index, DType dtype) {
  format::Encoded& encoded = *layer.matrices[index];
  WeightMatrix& matrix = layer.view(index);
  const auto shape = format::scale_shape(geometry(matrix), matrix.rows, matrix.cols);
  const std::ptrdiff_t width = bits(dtype) / 8;
  std::vector<std::byte> scales(static_cast<std::size_t>(shape.rows * shape.cols * width));
  for (std::int64_t i = 0; i < shape.rows; ++i)
    for (std::int64_t j = 0; j < shape.cols; ++j) {
      const float scale = format::scale_at(matrix.scales, i, j);
      std::byte* at = scales.data() + (i * shape.cols + j) * width;
      if (dtype == DType::f32)
        store(at, scale);
      else
        store(at, dtype == DType::f16 ? format::float_to_f16(scale) : format::float_to_bf16(scale));
    }
  encoded.scales = std::move(scales);
  matrix.scales = {encoded.scales.data(), dtype, shape.cols * width, width};
  encoded.matrix.scales = matrix.scales;
}

void retype_scales(DrawnLayer& layer, DType dtype) {
  for (std::size_t i = 0; i < layer.matrices.size(); ++i) retype_scales(layer, i, dtype);
}

void deal_at_random(DrawnLayer& layer, std::size_t index, Draw& draw) {
  format::Encoded& encoded = *layer.matrices[index];
  const std::int64_t groups = format::groups_of_row(encoded.matrix);
  for (std::int64_t c = 0; c < encoded.matrix.cols; ++c)
    store(encoded.column_groups.data() + 4 * c, static_cast<std::int32_t>(draw.below(groups)));
}

RowsView DrawnCall::rows(const ExpertsSpec& spec) const {
  return {hidden.data(), dtype, tokens, spec.hidden,
          row_stride != 0 ? row_stride : spec.hidden * std::ptrdiff_t{bits(dtype) / 8}};
}

Routing DrawnCall::routing(const ExpertsSpec& spec) const {
  return {ids.data(), weights.data(), tokens, spec.top_k};
}

void DrawnCall::set(const ExpertsSpec& spec, int token, int column, float value) {
  store_input(*this, static_cast<std::size_t>(token) * spec.hidden + column, value);
}

DrawnCall draw_call(const ExpertsSpec& spec, int tokens, Numbers numbers, std::uint64_t seed) {
  Draw draw(seed);
  DrawnCall call{.tokens = tokens};
  const std::size_t count = static_cast<std::size_t>(tokens) * spec.hidden;
  call.hidden.resize(2 * count);
  for (std::size_t i = 0; i < count; ++i)
    store_input(call, i,
                static_cast<float>(numbers == Numbers::exact ? static_cast<double>(draw.below(7) - 3)
                                                             : draw.normal()));
  for (int t = 0; t < tokens; ++t) {
    const auto first = static_cast<std::int32_t>(draw.below(spec.experts));
    for (int j = 0; j < spec.top_k; ++j) {
      call.ids.push_back((first + j) % spec.experts);
      call.weights.push_back(numbers == Numbers::exact ? (j % 2 == 0 ? 0.5f : 2.0f)
                                                       : static_cast<float>(draw.uniform()));
    }
  }
  return call;
}

DrawnCall retype(const ExpertsSpec& spec, const DrawnCall& call, DType dtype) {
  DrawnCall other = call;
  other.dtype = dtype;
  const std::size_t count = static_cast<std::size_t>(call.tokens) * spec.hidden;
  other.hidden.assign(count * (bits(dtype) / 8), std::byte{0});
  for (std::size_t i = 0; i < count; ++i) store_input(other, i, read_input(call, i));
  return other;
}

DrawnCall spread(const ExpertsSpec& spec, const DrawnCall& call, std::ptrdiff_t row_stride) {
  DrawnCall apart = call;
  apart.row_stride = row_stride;
  apart.hidden.assign(static_cast<std::size_t>(call.tokens * row_stride), std::byte{0xFF});
  const std::ptrdiff_t width = call.rows(spec).row_stride;
  for (int t = 0; t < call.tokens; ++t)
    std::copy_n(call.hidden.data() + t * width, width, apart.hidden.data() + t * row_stride);
  return apart;
}

DrawnCall one_token(const ExpertsSpec& spec, const DrawnCall& call, int token) {
  DrawnCall one{.tokens = 1, .dtype = call.dtype, .expert_map = call.expert_map};
  const std::ptrdiff_t width = call.rows(spec).row_stride, top_k = spec.top_k;
  one.hidden.assign(call.hidden.begin() + token * width, call.hidden.begin() + (token + 1) * width);
  one.ids.assign(call.ids.begin() + token * top_k, call.ids.begin() + (token + 1) * top_k);
  one.weights.assign(call.weights.begin() + token * top_k, call.weights.begin() + (token + 1) * top_k);
  return one;
}

std::unique_ptr<PackedExperts> pack(const Backend& backend, const DrawnLayer& layer, Executor& executor) {
  return backend.pack(
      {.spec = layer.spec, .experts = layer.experts, .owner = {}, .executor = executor, .progress = {}});
}

std::vector<float> run(const PackedExperts& packed, const DrawnCall& call, Executor& executor) {
  const ExpertsSpec& spec = packed.spec;
  const Kernel& kernel = packed.backend.kernels().front();
  const std::size_t bytes = kernel.workspace_bytes(packed, call.tokens, executor.workers());
  const Lines workspace(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
  std::memset(workspace.get(), 0xFF, bytes);  // NaN as float32: what is read before it is written shows
  std::vector<float> out(static_cast<std::size_t>(call.tokens) * spec.hidden,
                         std::numeric_limits<float>::quiet_NaN());
  kernel.run(packed, {.input = call.rows(spec),
                      .routing = call.routing(spec),
                      .expert_map = call.expert_map,
                      .output = out.data(),
                      .workspace = {workspace.get(), bytes},
                      .executor = &executor});
  return out;
}

Wanted define(const DrawnLayer& layer, const DrawnCall& call) {
  const ExpertsSpec& spec = layer.spec;
  const std::size_t hidden = static_cast<std::size_t>(spec.hidden);
  Wanted wanted{std::vector<double>(call.tokens * hidden), std::vector<double>(call.tokens * hidden)};
  std::vector<double> scratch(reference::scratch_doubles(spec)), x(hidden);
  for (int t = 0; t < call.tokens; ++t) {
    for (std::size_t i = 0; i < hidden; ++i) x[i] = read_input(call, t * hidden + i);
    reference::Observed observed{.magnitude = {wanted.magnitude.data() + t * hidden, hidden}};
    reference::compute(
        {spec, layer.experts, call.expert_map},
        {x.data(), call.ids.data() + t * spec.top_k, call.weights.data() + t * spec.top_k, spec.top_k},
        wanted.out.data() + t * hidden, scratch, &observed);
  }
  return wanted;
}

}  // namespace sluice::testing
