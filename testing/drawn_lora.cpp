// SPDX-License-Identifier: Apache-2.0
#include "testing/drawn_lora.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/scales.h"
#include "testing/draw.h"

namespace sluice::testing {
namespace {

/// How a matrix is stored.
struct Storage {
  DType dtype;
  bool transposed;
};

/// The memory behind an adapter.
using Owner = std::vector<std::vector<std::byte>>;

class LoraDraw {
 public:
  LoraDraw(const LayerSpec& spec, Numbers numbers, std::uint64_t seed)
      : spec_(spec), exact_(numbers == Numbers::exact), draw_(seed) {}

  LoraAdapter adapter(int divisor) {
    owner_ = std::make_shared<Owner>();
    LoraAdapter adapter;
    const bool whole = divisor == 1;
    for (int e = 0; e < spec_.routed.local_experts; ++e) {
      adapter.routed.push_back(expert(spec_.routed, std::max(1, spec_.routed.lora_rank / divisor)));
      if (!whole && e % 3 == 1) adapter.routed.back().gate = {};
      if (!whole && e % 4 == 2) adapter.routed.back().down = {};
    }
    if (spec_.shared && spec_.shared->experts.lora_rank > 0)
      adapter.shared.push_back(
          expert(spec_.shared->experts, std::max(1, spec_.shared->experts.lora_rank / divisor)));
    adapter.owner = owner_;
    return adapter;
  }

 private:
  LoraExpert expert(const ExpertsSpec& spec, int rank) {
    LoraExpert expert{.up = delta(spec.intermediate, spec.hidden, rank),
                      .down = delta(spec.hidden, spec.intermediate, rank)};
    if (spec.formats.gate)
      expert.gate = exact_ ? gate(spec, rank) : delta(spec.intermediate, spec.hidden, rank);
    return expert;
  }

  /// Noisy deltas are about as large as the weights' own products; exact ones have two terms a row.
  LoraDelta delta(int rows, int cols, int rank) {
    std::vector<float> a(size(rank, cols)), b(size(rows, rank));
    const double a_size = 1 / std::sqrt(static_cast<double>(cols)),
                 b_size = 2 / std::sqrt(static_cast<double>(rank));
    if (exact_) {
      for (int r = 0; r < rank; ++r)
        for (int term = 0; term < 2; ++term) a[size(r, cols) + below(cols)] = sign();
      for (int i = 0; i < rows; ++i) b[size(i, rank) + below(rank)] = sign();
    } else {
      a = draw_.normals(std::ssize(a), a_size);
      b = draw_.normals(std::ssize(b), b_size);
    }
    return {matrix(a, rank, cols), matrix(b, rows, rank), exact_ ? 2.0f : 0.75f};
  }

  /// A sums the inputs of at least 3 whose columns all tokens share, so it is at least 50; B has one 1 or
  /// none.
  LoraDelta gate(const ExpertsSpec& spec, int rank) {
    std::vector<float> a(size(rank, spec.hidden)), b(size(spec.intermediate, rank));
    for (int r = 0; r < rank; ++r) {
      for (int k = 0; k < spec.hidden; ++k)
        if (is_anchor(k, spec.hidden)) a[size(r, spec.hidden) + static_cast<std::size_t>(k)] = 1;
      for (int term = 0; term < 2; ++term) a[size(r, spec.hidden) + below(spec.hidden)] = sign();
    }
    for (int i = 0; i < spec.intermediate; ++i)
      if (draw_.below(2) == 0) b[size(i, rank) + below(rank)] = 1;
    return {matrix(a, rank, spec.hidden), matrix(b, spec.intermediate, rank), 1.0f};
  }

  LoraMatrix matrix(const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
    constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
    storage_ = {kTypes[draw_.below(3)], draw_.below(2) == 1};
    const std::ptrdiff_t width = bits(storage_.dtype) / 8;
    LoraMatrix matrix{.dtype = storage_.dtype,
                      .rows = rows,
                      .cols = cols,
                      .row_stride = storage_.transposed ? width : width * cols,
                      .col_stride = storage_.transposed ? width * rows : width};
    std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(width));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t k = 0; k < cols; ++k)
        put(bytes.data() + i * matrix.row_stride + k * matrix.col_stride,
            values[size(i, cols) + static_cast<std::size_t>(k)]);
    owner_->push_back(std::move(bytes));
    matrix.data = owner_->back().data();
    return matrix;
  }

  void put(std::byte* at, float value) const {
    if (storage_.dtype == DType::f32) return store<float>(at, value);
    store<std::uint16_t>(
        at, storage_.dtype == DType::bf16 ? format::float_to_bf16(value) : format::float_to_f16(value));
  }

  static std::size_t size(std::int64_t rows, std::int64_t cols) {
    return static_cast<std::size_t>(rows * cols);
  }
  std::size_t below(std::int64_t bound) { return static_cast<std::size_t>(draw_.below(bound)); }
  float sign() { return draw_.below(2) == 0 ? -1.0f : 1.0f; }

  const LayerSpec& spec_;
  const bool exact_;
  Draw draw_;
  Storage storage_ = {DType::f32, false};
  std::shared_ptr<Owner> owner_;
};

}  // namespace

std::vector<const LoraAdapter*> DrawnLora::pointers() const {
  std::vector<const LoraAdapter*> all;
  for (const LoraAdapter& adapter : adapters) all.push_back(&adapter);
  return all;
}

DrawnLora draw_lora(const LayerSpec& spec, Numbers numbers, int tokens, std::uint64_t seed) {
  if (spec.routed.lora_rank == 0) return {};
  LoraDraw draw(spec, numbers, seed);
  DrawnLora lora;
  lora.adapters.push_back(draw.adapter(1));
  lora.adapters.push_back(draw.adapter(2));
  for (int token = 0; token < tokens; ++token) lora.ids.push_back((token + 1) % 3 - 1);
  return lora;
}

std::vector<float> merged(const WeightMatrix& weight, const LoraDelta& delta) {
  std::vector<float> values(static_cast<std::size_t>(weight.rows * weight.cols));
  std::vector<double> row(static_cast<std::size_t>(weight.cols));
  const auto number = [](const LoraMatrix& matrix, std::int64_t i, std::int64_t k) {
    return double{
        format::read_number(matrix.dtype, matrix.data + i * matrix.row_stride + k * matrix.col_stride)};
  };
  for (std::int64_t i = 0; i < weight.rows; ++i) {
    decode_row(weight, i, row.data());
    for (std::int64_t k = 0; k < weight.cols; ++k) {
      double sum = row[static_cast<std::size_t>(k)];
      for (std::int64_t r = 0; r < delta.a.rows; ++r)
        sum += delta.scale * number(delta.b, i, r) * number(delta.a, r, k);
      values[static_cast<std::size_t>(i * weight.cols + k)] = static_cast<float>(sum);
    }
  }
  return values;
}

}  // namespace sluice::testing
