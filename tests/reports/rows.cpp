// SPDX-License-Identifier: Apache-2.0
#include "tests/reports/rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "testing/draw.h"

namespace sluice::reports {
namespace {

template <class T>
double norm_of(std::span<const T> values) {
  double sum = 0;
  for (const T value : values) sum += double{value} * double{value};
  return std::sqrt(sum);
}

template <class T>
double distance(std::span<const float> got, std::span<const T> want) {
  double sum = 0;
  for (std::size_t i = 0; i < got.size(); ++i) sum += std::pow(double{got[i]} - double{want[i]}, 2);
  return std::sqrt(sum) / norm_of(want);
}

RowsView view_of(const std::vector<float>& rows, int width) {
  return {reinterpret_cast<const std::byte*>(rows.data()), DType::f32, static_cast<int>(rows.size()) / width,
          width, std::ptrdiff_t{width} * 4};
}

}  // namespace

const Backend* reference() {
  for (const Backend* backend : backends())
    if (backend->name == "reference") return backend;
  return nullptr;
}

std::vector<float> draw_rows(int rows, int width, std::uint64_t seed) {
  return testing::Draw(seed).normals(std::int64_t{rows} * width, 1);
}

Call draw_call(const LayerSpec& spec, int tokens, std::uint64_t seed) {
  testing::Draw draw(seed);
  const int experts = spec.routed.experts, top_k = spec.routed.top_k;
  Call call{.tokens = tokens, .hidden = draw.normals(std::int64_t{tokens} * spec.routed.hidden, 1)};
  std::vector<std::int32_t> deck(static_cast<std::size_t>(experts));
  std::iota(deck.begin(), deck.end(), 0);
  for (int t = 0; t < tokens; ++t)
    for (int k = 0; k < top_k; ++k) {
      std::swap(deck[static_cast<std::size_t>(k)],
                deck[static_cast<std::size_t>(k + draw.below(experts - k))]);
      call.ids.push_back(deck[static_cast<std::size_t>(k)]);
      call.weights.push_back(static_cast<float>(draw.uniform() / top_k));
    }
  return call;
}

double norm(std::span<const float> values) { return norm_of(values); }
double norm(std::span<const double> values) { return norm_of(values); }
double rel_l2(std::span<const float> got, std::span<const float> want) { return distance(got, want); }
double rel_l2(std::span<const float> got, std::span<const double> want) { return distance(got, want); }

std::vector<std::int32_t> ids_of(const Output& out, int token, int top_k) {
  const auto first = out.ids.begin() + token * top_k;
  return {first, first + top_k};
}

Output run_own_router(const Layer& layer, const Call& call) {
  const LayerSpec& spec = layer.plan().request.layer;
  const int hidden = spec.routed.hidden;
  const std::size_t rows = static_cast<std::size_t>(call.tokens);
  Output out{std::vector<float>(rows * hidden), std::vector<float>(rows * hidden),
             std::vector<std::int32_t>(rows * spec.routed.top_k),
             std::vector<float>(rows * spec.routed.top_k)};
  std::vector<std::byte> workspace(layer.workspace_bytes(call.tokens));
  layer.run({.hidden = view_of(call.hidden, hidden),
             .experts_out = out.experts.data(),
             .block_out = out.block.data(),
             .topk_ids = out.ids.data(),
             .topk_weights = out.weights.data(),
             .workspace = workspace});
  return out;
}

RandomRouter::RandomRouter(const LayerSpec& spec, std::uint64_t seed)
    : experts_(spec.routed.experts), hidden_(spec.routed.hidden), top_k_(spec.routed.top_k) {
  testing::Draw draw(seed);
  const std::vector<float> weight = draw.normals(std::int64_t{experts_} * hidden_, 2 / std::sqrt(hidden_));
  weight_ = shared(encode(kBf16, weight.data(), experts_, hidden_));
  bias_ = draw.normals(experts_, 0.1);
}

RouterWeights RandomRouter::weights() const {
  RouterWeights weights;
  weights.weight = weight_->matrix;
  weights.selection_bias = {reinterpret_cast<const std::byte*>(bias_.data()), DType::f32, experts_, 4};
  return weights;
}

std::vector<std::int32_t> RandomRouter::sigmoid_ids(const Call& call, int token) const {
  std::vector<double> score(static_cast<std::size_t>(experts_)), row(static_cast<std::size_t>(hidden_));
  for (int e = 0; e < experts_; ++e) {
    decode_row(weight_->matrix, e, row.data());
    double logit = 0;
    for (int k = 0; k < hidden_; ++k)
      logit += row[static_cast<std::size_t>(k)] *
               double{call.hidden[static_cast<std::size_t>(token * hidden_ + k)]};
    score[static_cast<std::size_t>(e)] =
        1 / (1 + std::exp(-logit)) + double{bias_[static_cast<std::size_t>(e)]};
  }
  std::vector<std::int32_t> ids(static_cast<std::size_t>(experts_));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, [&](std::int32_t a, std::int32_t b) {
    return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
  });
  ids.resize(static_cast<std::size_t>(top_k_));
  return ids;
}

std::vector<float> run_batched(const Backend& backend, const Toy& toy, const Batched& rows) {
  const Layer layer = layer_on(backend, toy, 2, {kBatched});
  const auto hidden = static_cast<std::size_t>(toy.routed().hidden);
  const std::size_t room = rows.counts.size() * static_cast<std::size_t>(rows.max_tokens);
  std::vector<float> input(room * hidden, rows.filler), output(room * hidden, kUnwritten);
  std::size_t next = 0;
  for (std::size_t r = 0; r < room; ++r) {
    const std::size_t at = r % static_cast<std::size_t>(rows.max_tokens);
    if (at >= static_cast<std::size_t>(rows.counts[r / static_cast<std::size_t>(rows.max_tokens)])) continue;
    const std::size_t from = rows.used.size() == hidden ? 0 : next++ * hidden;
    std::copy_n(rows.used.begin() + static_cast<std::ptrdiff_t>(from), hidden,
                input.begin() + static_cast<std::ptrdiff_t>(r * hidden));
  }
  std::vector<std::byte> workspace(layer.rows_workspace_bytes(static_cast<int>(room)));
  layer.run_rows({.hidden = view_of(input, toy.routed().hidden),
                  .counts = rows.counts,
                  .max_tokens = rows.max_tokens,
                  .output = output.data(),
                  .workspace = workspace});
  return output;
}

std::vector<float> run_contiguous(const Layer& layer, const std::vector<std::int32_t>& offsets,
                                  const std::vector<float>& hidden) {
  const int width = layer.plan().request.layer.routed.hidden;
  std::vector<float> output(hidden.size(), kUnwritten);
  std::vector<std::byte> workspace(layer.rows_workspace_bytes(static_cast<int>(hidden.size()) / width));
  layer.run_rows({.hidden = view_of(hidden, width),
                  .offsets = offsets,
                  .output = output.data(),
                  .workspace = workspace});
  return output;
}

std::vector<float> over_ranks(const Backend& backend, const Toy& toy, const Call& call,
                              const std::vector<std::vector<std::int32_t>>& ranks) {
  const int width = toy.routed().hidden, top_k = toy.routed().top_k;
  std::vector<float> rows;
  std::vector<std::int32_t> row_of_slot(call.ids.size(), -1);
  for (const std::vector<std::int32_t>& rank : ranks) {
    Toy part = toy;
    part.spec.shared.reset();
    part.spec.routed.local_experts = static_cast<int>(rank.size());
    part.weights.routed.clear();
    part.weights.shared.clear();
    std::vector<std::int32_t> map(static_cast<std::size_t>(toy.routed().experts), -1), offsets{0};
    std::vector<float> hidden;
    for (std::size_t i = 0; i < rank.size(); ++i) {
      map[static_cast<std::size_t>(rank[i])] = static_cast<std::int32_t>(i);
      part.weights.routed.push_back(toy.weights.routed[static_cast<std::size_t>(rank[i])]);
      for (std::size_t slot = 0; slot < call.ids.size(); ++slot) {
        if (call.ids[slot] != rank[i]) continue;
        const auto token = static_cast<std::ptrdiff_t>(slot) / top_k * width;
        row_of_slot[slot] =
            static_cast<std::int32_t>((rows.size() + hidden.size()) / static_cast<std::size_t>(width));
        hidden.insert(hidden.end(), call.hidden.begin() + token, call.hidden.begin() + token + width);
      }
      offsets.push_back(static_cast<std::int32_t>(hidden.size() / static_cast<std::size_t>(width)));
    }
    const bool all = rank.size() == map.size();
    const Layer layer(
        plan_on(backend, part.spec, {kContiguous}), part.weights,
        {.expert_map = all ? std::vector<std::int32_t>() : map, .executor = make_thread_team(2)});
    const std::vector<float> out = run_contiguous(layer, offsets, hidden);
    rows.insert(rows.end(), out.begin(), out.end());
  }
  std::vector<float> sum(static_cast<std::size_t>(call.tokens) * width, kUnwritten);
  combine({call.ids.data(), call.weights.data(), call.tokens, top_k}, row_of_slot, rows.data(), width,
          sum.data());
  return sum;
}

}  // namespace sluice::reports
