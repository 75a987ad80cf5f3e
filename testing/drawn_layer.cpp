// SPDX-License-Identifier: Apache-2.0
#include "testing/drawn_layer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/formats.h"
#include "testing/draw.h"
#include "testing/exact_blocks.h"

namespace sluice::testing {
namespace {

// Exact layers. Every token has 3 in the anchor columns, and a gate row that is not all zeros has 1 there, so
// with kGateTerms other terms of at most 3 the gate is at least 3 * kAnchors - 3 * kGateTerms = 60, less a
// bias of 2.
constexpr int kAnchors = 24;
constexpr int kGateTerms = 4, kUpTerms = 6, kDownTerms = 8;  // non-zero weights of a row
constexpr int kLatentTerms = 3;                              // of a row of the projection behind the experts
constexpr float kExactNorm = 0x1p-50f;                       // 1 / sqrt(mean of squares + kExactEpsilon)
constexpr int kStep = 7919;  // a prime above any width drawn here: multiples of it visit every column

/// The memory behind a LayerWeights.
struct Owner {
  std::vector<std::unique_ptr<format::Encoded>> matrices;
  std::vector<std::unique_ptr<std::vector<std::byte>>> vectors;
};

struct Shape {
  std::int64_t rows = 0, cols = 0;
};

/// The code of -1, 0 or 1 in a format of 4 bits (E2M1) or 8 (E4M3).
unsigned code_of(int value, int bits) {
  const unsigned one = bits == 4 ? 0x2 : 0x38, sign = bits == 4 ? 0x8 : 0x80;
  return value == 0 ? 0 : value > 0 ? one : one | sign;
}

void write_codes(const std::vector<float>& values, int bits, std::vector<std::byte>& codes) {
  std::ranges::fill(codes, std::byte{0});
  for (std::size_t i = 0; i < values.size(); ++i) {
    const unsigned code = code_of(static_cast<int>(values[i]), bits);
    const std::size_t at = bits == 4 ? i / 2 : i;  // rows have an even number of columns
    codes[at] |= std::byte(bits == 4 && i % 2 == 1 ? code << 4 : code);
  }
}

/// Scales of 1 and 2, drawn.
void write_scales(Draw& draw, DType dtype, std::vector<std::byte>& scales) {
  const std::size_t width = static_cast<std::size_t>(bits(dtype)) / 8;
  for (std::size_t at = 0; at < scales.size(); at += width) {
    const bool two = draw.below(2) == 1;
    if (dtype == DType::f32) {
      store<float>(scales.data() + at, two ? 2.0f : 1.0f);
    } else if (dtype == DType::bf16) {
      store<std::uint16_t>(scales.data() + at, format::float_to_bf16(two ? 2.0f : 1.0f));
    } else {  // e8m0: the exponent plus 127; e4m3: 0x38 is 1, 0x40 is 2
      const bool power = dtype == DType::f8_e8m0 || dtype == DType::u8;
      scales[at] = power ? std::byte(two ? 128 : 127) : std::byte(two ? 0x40 : 0x38);
    }
  }
}

/// Codes of -1, 0 and 1 around zero points that leave room for both.
void write_integers(Draw& draw, const std::vector<float>& values, format::Encoded& encoded) {
  const WeightMatrix& matrix = encoded.matrix;
  const int bits = format::integer_bits(matrix), most = (1 << bits) - 2;
  const std::int64_t groups = format::groups_of_row(matrix);
  if (matrix.integers.grouping.zero_points)
    for (std::int64_t r = 0; r < matrix.rows; ++r)
      for (std::int64_t group = 0; group < groups; ++group)
        set_zero(encoded, r, group, static_cast<unsigned>(1 + draw.below(most)));
  std::vector<std::uint8_t> zeros(static_cast<std::size_t>(groups));
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    format::zeros_of_row(matrix, r, zeros.data());
    for (std::int64_t c = 0; c < matrix.cols; ++c) {
      const int zero = zeros[static_cast<std::size_t>(format::group_of_column(matrix, c))];
      const auto value = static_cast<int>(values[static_cast<std::size_t>(r * matrix.cols + c)]);
      set_code(encoded, r, c, static_cast<unsigned>(zero + value));
    }
  }
}

class LayerDraw {
 public:
  LayerDraw(const LayerSpec& spec, Numbers numbers, std::uint64_t seed)
      : spec_(spec), exact_(numbers == Numbers::exact), draw_(seed), owner_(std::make_shared<Owner>()) {}

  LayerWeights layer() {
    LayerWeights weights;
    for (int e = 0; e < spec_.routed.local_experts; ++e)
      weights.routed.push_back(expert(spec_.routed, spec_.routed.formats_of(e)));
    if (spec_.shared) {
      weights.shared.push_back(expert(spec_.shared->experts, spec_.shared->experts.formats));
      if (spec_.shared->sigmoid_gate) weights.shared_gate = shared_gate();
    }
    weights.router = router();
    if (spec_.latent) weights.latent = latent();
    weights.owner = owner_;
    return weights;
  }

 private:
  ExpertWeights expert(const ExpertsSpec& spec, const MatrixFormats& formats) {
    const Shape wide{spec.intermediate, spec.hidden}, tall{spec.hidden, spec.intermediate};
    const bool limited = std::isfinite(spec.params.limit);
    const double reach = (limited ? spec.params.limit : 1.5) / std::sqrt(static_cast<double>(spec.hidden));
    const double down_reach = 1 / std::sqrt(static_cast<double>(spec.intermediate));
    std::optional<WeightMatrix> gate;
    if (formats.gate)
      gate = matrix({*formats.gate, formats.gate_grouping}, wide, exact_ ? gates(wide) : normal(wide, reach));
    ExpertWeights expert{.gate = gate,
                         .up = matrix({formats.up, formats.up_grouping}, wide,
                                      exact_ ? sparse(wide, kUpTerms) : normal(wide, reach)),
                         .down = matrix({formats.down, formats.down_grouping}, tall,
                                        exact_ ? sparse(tall, kDownTerms) : normal(tall, down_reach))};
    if (spec.gate_up_bias) {
      expert.up_bias = bias(spec.intermediate);
      if (formats.gate) expert.gate_bias = gate_bias(*expert.gate);
    }
    if (spec.down_bias) expert.down_bias = bias(spec.hidden);
    return expert;
  }

  /// Normal numbers whose size differs by up to four times from one 16 columns to the next.
  std::vector<float> normal(Shape shape, double deviation) {
    std::vector<float> values(static_cast<std::size_t>(shape.rows * shape.cols));
    // The mean square of 2^u, u uniform in [-1, 1], is (4 - 1/4) / (4 ln 2).
    const double unit = deviation / std::sqrt(3.75 / (4 * std::log(2.0)));
    double size = 1;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % 16 == 0) size = std::exp2(2 * draw_.uniform() - 1);
      values[i] = static_cast<float>(unit * size * draw_.normal());
    }
    return values;
  }

  /// `terms` weights of -1 or 1 a row, elsewhere 0.
  std::vector<float> sparse(Shape shape, int terms) {
    std::vector<float> values(static_cast<std::size_t>(shape.rows * shape.cols));
    for (std::int64_t row = 0; row < shape.rows; ++row)
      for (int term = 0; term < terms; ++term) values[at(shape, row, draw_.below(shape.cols))] = sign();
    return values;
  }

  /// A quarter of the rows all zeros, the others 1 at the anchors and a few other terms.
  std::vector<float> gates(Shape shape) {
    std::vector<float> values(static_cast<std::size_t>(shape.rows * shape.cols));
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      if (draw_.below(4) == 0) continue;
      for (int term = 0; term < kGateTerms; ++term) values[at(shape, row, draw_.below(shape.cols))] = sign();
      for (std::int64_t column = 0; column < shape.cols; ++column)
        if (is_anchor(column, static_cast<int>(shape.cols))) values[at(shape, row, column)] = 1;
    }
    return values;
  }

  static std::size_t at(Shape shape, std::int64_t row, std::int64_t column) {
    return static_cast<std::size_t>(row * shape.cols + column);
  }

  float sign() { return draw_.below(2) == 0 ? -1.0f : 1.0f; }

  struct Storage {
    Format format;
    Grouping grouping = {};
  };

  /// The layouts of files take turns, where a matrix can be laid out so.
  format::IntegerRecipe recipe(const Storage& how, Shape shape) {
    using File = format::IntegerFile;
    constexpr File kFiles[] = {File::rows, File::gptq, File::padded_rows, File::awq};
    format::IntegerRecipe recipe{.grouping = how.grouping};
    do recipe.file = kFiles[turn_++ % std::size(kFiles)];
    while (!can_lay_out(how.format, recipe, shape.rows, shape.cols));
    return recipe;
  }

  format::Encoded encoded(const Storage& how, Shape shape, const std::vector<float>& values) {
    if (!is_integer(how.format)) return encode(how.format, values.data(), shape.rows, shape.cols);
    if (exact_) return make_integers(how.format, recipe(how, shape), shape.rows, shape.cols);
    return encode_integers(how.format, recipe(how, shape), {values.data(), shape.rows, shape.cols});
  }

  WeightMatrix matrix(const Storage& how, Shape shape, const std::vector<float>& values) {
    auto made = std::make_unique<format::Encoded>(encoded(how, shape, values));
    const format::Geometry& geometry = sluice::geometry(how.format);
    if (exact_ && is_ggml_block(how.format)) write_blocks(draw_, values, {}, *made);
    if (exact_ && geometry.scaled) {
      if (geometry.integers)
        write_integers(draw_, values, *made);
      else
        write_codes(values, geometry.code_bits, made->codes);
      write_scales(draw_, made->matrix.scales.dtype, made->scales);
      if (geometry.second_scale) made->matrix.second_scale = draw_.below(2) == 0 ? 1.0f : 2.0f;
    }
    owner_->matrices.push_back(std::move(made));
    return owner_->matrices.back()->matrix;
  }

  VectorView vector(const std::vector<float>& values) {
    auto bytes = std::make_unique<std::vector<std::byte>>(2 * values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      store<std::uint16_t>(bytes->data() + 2 * i, format::float_to_bf16(values[i]));
    owner_->vectors.push_back(std::move(bytes));
    return {owner_->vectors.back()->data(), DType::bf16, std::ssize(values), 2};
  }

  VectorView bias(int size) {
    std::vector<float> values(static_cast<std::size_t>(size));
    for (float& value : values)
      value = exact_ ? static_cast<float>(draw_.below(5) - 2) : static_cast<float>(0.5 * draw_.normal());
    return vector(values);
  }

  /// An exact gate that is 0 stays 0: a sigmoid of 1 or 2 would not be exact.
  VectorView gate_bias(const WeightMatrix& gate) {
    if (!exact_) return bias(static_cast<int>(gate.rows));
    std::vector<float> values(static_cast<std::size_t>(gate.rows)), row(static_cast<std::size_t>(gate.cols));
    for (std::int64_t r = 0; r < gate.rows; ++r) {
      decode_row(gate, r, row.data());
      const bool zero = std::ranges::all_of(row, [](float weight) { return weight == 0; });
      values[static_cast<std::size_t>(r)] = zero ? 0.0f : static_cast<float>(draw_.below(5) - 2);
    }
    return vector(values);
  }

  /// Exact: 72 for every token, whose sigmoid is 1.
  VectorView shared_gate() {
    std::vector<float> values(static_cast<std::size_t>(spec_.hidden()));
    for (std::size_t k = 0; k < values.size(); ++k)
      values[k] = exact_ ? (is_anchor(static_cast<std::int64_t>(k), spec_.hidden()) ? 1.0f : 0.0f)
                         : static_cast<float>(draw_.normal() / std::sqrt(static_cast<double>(values.size())));
    return vector(values);
  }

  /// Exact: the latent rows are such as the layer's, 3 at their anchors and at most 3 elsewhere; every other
  /// row cancels two anchors. The norm's factor is a power of two for the epsilon of such layers.
  LatentWeights latent() {
    const Shape in{spec_.routed.hidden, spec_.hidden()}, out{spec_.hidden(), spec_.routed.hidden};
    const Storage bf16{Formats::of<format::Bf16>()}, f32{Formats::of<format::F32>()};
    LatentWeights weights{
        .in = matrix(bf16, in, exact_ ? anchored(in) : normal(in, 1 / std::sqrt(double(in.cols)))),
        .out = matrix(f32, out,
                      exact_ ? sparse(out, kLatentTerms) : normal(out, 1 / std::sqrt(double(out.cols))))};
    if (!spec_.latent->norm_epsilon) return weights;
    std::vector<float> norm(static_cast<std::size_t>(in.rows));
    for (float& weight : norm)
      weight = exact_ ? static_cast<float>(1 + draw_.below(2)) / kExactNorm
                      : static_cast<float>(1 + 0.3 * draw_.normal());
    weights.norm = vector(norm);
    return weights;
  }

  std::vector<float> anchored(Shape shape) {
    std::vector<std::int64_t> anchors;
    for (std::int64_t column = 0; column < shape.cols; ++column)
      if (is_anchor(column, static_cast<int>(shape.cols))) anchors.push_back(column);
    const auto count = std::ssize(anchors);
    std::vector<float> values(static_cast<std::size_t>(shape.rows * shape.cols));
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const auto turn = draw_.below(count);
      const auto anchor = [&](std::int64_t of) {
        return anchors[static_cast<std::size_t>((turn + of) % count)];
      };
      if (is_anchor(row, static_cast<int>(shape.rows))) {
        values[at(shape, row, anchor(0))] = values[at(shape, row, anchor(1))] = 1;
        values[at(shape, row, anchor(2))] = -1;
      } else {
        values[at(shape, row, anchor(0))] = 1;
        values[at(shape, row, anchor(1))] = -1;
        const std::int64_t column = draw_.below(shape.cols);
        if (!is_anchor(column, static_cast<int>(shape.cols))) values[at(shape, row, column)] = sign();
      }
    }
    return values;
  }

  RouterWeights router() {
    const RouterSpec& spec = spec_.router;
    const Shape shape{spec.experts, spec_.hidden()};
    RouterWeights weights;
    weights.weight = matrix(
        {Formats::of<format::Bf16>()}, shape,
        exact_ ? sparse(shape, kUpTerms) : normal(shape, 2 / std::sqrt(static_cast<double>(shape.cols))));
    if (spec.bias) weights.bias = bias(spec.experts);
    if (spec.selection_bias) weights.selection_bias = bias(spec.experts);
    if (spec.expert_scale) weights.expert_scale = bias(spec.experts);
    if (spec.by_token_id)
      for (int token = 0; token < kDrawnVocabulary; ++token)
        for (int k = 0; k < spec.top_k; ++k)
          weights.table.push_back((token * 5 + k * (token % 3 + 1)) % spec.experts);
    return weights;
  }

  const LayerSpec& spec_;
  const bool exact_;
  unsigned turn_ = 0;
  Draw draw_;
  std::shared_ptr<Owner> owner_;
};

std::vector<float> draw_hidden(const LayerSpec& spec, Numbers numbers, int tokens, Draw& draw) {
  const int hidden = spec.hidden();
  std::vector<float> values;
  for (int token = 0; token < tokens; ++token)
    for (int k = 0; k < hidden; ++k) {
      if (numbers == Numbers::noisy) {
        values.push_back(static_cast<float>(draw.normal()));
      } else {
        values.push_back(is_anchor(k, hidden) ? 3.0f : static_cast<float>(draw.below(7) - 3));
      }
    }
  return values;
}

std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  const std::size_t width = static_cast<std::size_t>(bits(dtype)) / 8;
  std::vector<std::byte> bytes(values.size() * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::byte* at = bytes.data() + i * width;
    if (dtype == DType::f32) store<float>(at, values[i]);
    if (dtype == DType::bf16) store<std::uint16_t>(at, format::float_to_bf16(values[i]));
    if (dtype == DType::f16) store<std::uint16_t>(at, format::float_to_f16(values[i]));
  }
  return bytes;
}

/// Weights on the input keep the gate above 40, so there is none of 1/2.
float routing_weight(const LayerSpec& spec, Numbers numbers, Draw& draw) {
  if (numbers == Numbers::noisy) return static_cast<float>(draw.uniform());
  const double powers[] = {1, 2, 0.5};
  return static_cast<float>(powers[draw.below(spec.routed.weight_on_input ? 2 : 3)]);
}

}  // namespace

bool is_anchor(std::int64_t column, int hidden) { return column * kStep % hidden < kAnchors; }

LayerWeights draw_weights(const LayerSpec& spec, Numbers numbers, std::uint64_t seed) {
  return LayerDraw(spec, numbers, seed).layer();
}

Routing DrawnCall::routing(int top_k) const { return {ids.data(), weights.data(), hidden.rows, top_k}; }

DrawnCall draw_call(const LayerSpec& spec, Numbers numbers, CallShape shape, std::uint64_t seed) {
  Draw draw(seed);
  DrawnCall call{.rows = stored(draw_hidden(spec, numbers, shape.tokens, draw), shape.dtype)};
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{spec.hidden()} * bits(shape.dtype) / 8;
  call.hidden = {call.rows.data(), shape.dtype, shape.tokens, spec.hidden(), row_bytes};

  std::vector<std::int32_t> experts(static_cast<std::size_t>(spec.routed.experts));
  std::iota(experts.begin(), experts.end(), 0);
  for (int token = 0; token < shape.tokens; ++token) {
    for (int k = 0; k < spec.routed.top_k; ++k) {
      std::swap(experts[static_cast<std::size_t>(k)],
                experts[static_cast<std::size_t>(k + draw.below(spec.routed.experts - k))]);
      call.ids.push_back(experts[static_cast<std::size_t>(k)]);
      call.weights.push_back(routing_weight(spec, numbers, draw));
    }
    call.token_ids.push_back(draw.below(kDrawnVocabulary));
  }
  return call;
}

}  // namespace sluice::testing
