// SPDX-License-Identifier: Apache-2.0
#include "engine/router.h"

#include <algorithm>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/f16.h"
#include "format/formats.h"
#include "format/scales.h"

namespace sluice {
namespace {

constexpr int kLanes = 16;  // one AVX-512 register, two of AVX2, four of SSE
constexpr int kTaskExperts =
    8;  // experts a task: 128 kB of weights at hidden 4096, which stay in L2 from row to row

template <class Element, class Decode>
void read_elements(const std::byte* from, int count, Decode decode, float* out) {
  for (int i = 0; i < count; ++i)
    out[i] = decode(load<Element>(from + std::ptrdiff_t{i} * std::ptrdiff_t{sizeof(Element)}));
}

}  // namespace

std::vector<float> to_floats(const VectorView& view) {
  std::vector<float> floats;
  assign_floats(view, floats);
  return floats;
}

void assign_floats(const VectorView& view, std::vector<float>& floats) {
  floats.clear();
  if (!view) return;
  floats.reserve(static_cast<std::size_t>(view.size));
  for (std::int64_t i = 0; i < view.size; ++i)
    floats.push_back(format::read_number(view.dtype, view.data + i * view.stride));
}

void read_row(const RowsView& rows, int row, float* out) {
  const std::byte* from = rows.data + row * rows.row_stride;
  if (rows.dtype == DType::bf16) {
    read_elements<std::uint16_t>(from, rows.width, format::bf16_to_float, out);
  } else if (rows.dtype == DType::f16) {
    read_elements<std::uint16_t>(from, rows.width, format::f16_to_float, out);
  } else {
    read_elements<float>(
        from, rows.width, [](float value) { return value; }, out);
  }
}

float dot(const float* a, const float* b, int size) {
  float sums[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (int lane = 0; i + lane < size; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

Router::Router(const RouterSpec& spec, const RouterWeights& weights) : experts_(spec.experts) {
  assign(weights);
}

bool Router::is_like(const RouterWeights& weights) const {
  const auto same = [](const VectorView& view, const std::vector<float>& floats) {
    return static_cast<bool>(view) == !floats.empty();
  };
  return weights.weight.has_value() == has_weight() && same(weights.bias, bias_) &&
         same(weights.selection_bias, selection_bias_) && same(weights.expert_scale, expert_scale_) &&
         weights.table.size() == table_.size();
}

void Router::assign(const RouterWeights& weights) {
  assign_floats(weights.bias, bias_);
  assign_floats(weights.selection_bias, selection_bias_);
  assign_floats(weights.expert_scale, expert_scale_);
  table_.assign(weights.table.begin(), weights.table.end());
  if (!weights.weight) return;
  const WeightMatrix& matrix = *weights.weight;
  weight_.resize(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    decode_row(matrix, row, weight_.data() + row * matrix.cols);
}

void Router::logits(const RowsView& rows, Executor& executor, float* scratch, float* out) const {
  const std::ptrdiff_t width = rows.width;
  parallel_for(executor, rows.rows, [&](int row, int) { read_row(rows, row, scratch + row * width); });

  // A task is a few experts for all rows, so that their weights are read from memory once.
  const int tasks = (experts_ + kTaskExperts - 1) / kTaskExperts;
  parallel_for(executor, tasks, [&](int task, int) {
    const int last = std::min(experts_, (task + 1) * kTaskExperts);
    for (int row = 0; row < rows.rows; ++row)
      for (int expert = task * kTaskExperts; expert < last; ++expert) {
        const float sum = dot(scratch + row * width, weight_.data() + expert * width, rows.width);
        out[std::ptrdiff_t{row} * experts_ + expert] =
            bias_.empty() ? sum : sum + bias_[static_cast<std::size_t>(expert)];
      }
  });
}

}  // namespace sluice
