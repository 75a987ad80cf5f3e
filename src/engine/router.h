// SPDX-License-Identifier: Apache-2.0
// A layer's own router: logits = W x + b in float32.
//
// The weights are float32 here whatever the file has; a router is a thousandth of its layer. A logit is
// summed in a fixed order of its own, so it depends neither on the number of threads nor on the other tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/executor.h"
#include "sluice/spec.h"

namespace sluice {

/// The vector as float32; empty for an empty view.
std::vector<float> to_floats(const VectorView& view);
/// The same into `floats`, without an allocation where it has the room.
void assign_floats(const VectorView& view, std::vector<float>& floats);

/// Row `row` of `rows` as float32, `rows.width` of them. The data need not be aligned.
void read_row(const RowsView& rows, int row, float* out);

/// Sum of a[i] * b[i], in sixteen sums of every sixteenth element that are then added pairwise.
float dot(const float* a, const float* b, int size);

class Router {
 public:
  Router() = default;
  Router(const RouterSpec& spec, const RouterWeights& weights);

  /// Replaces all numbers. Of weights with the parts and sizes of those before, which keep their addresses.
  void assign(const RouterWeights& weights);
  /// False where `weights` have other parts, or a table of another size.
  bool is_like(const RouterWeights& weights) const;

  /// False when LayerWeights brought no router weight.
  bool has_weight() const { return !weight_.empty(); }
  std::span<const float> weight() const { return weight_; }
  std::span<const float> bias() const { return bias_; }
  std::span<const float> selection_bias() const { return selection_bias_; }
  std::span<const float> expert_scale() const { return expert_scale_; }
  std::span<const std::int32_t> table() const { return table_; }

  /// Logits of all rows into `out`, [rows, experts]. `scratch` is [rows, width].
  void logits(const RowsView& rows, Executor& executor, float* scratch, float* out) const;

 private:
  int experts_ = 0;
  std::vector<float> weight_;  // [experts, hidden]
  std::vector<float> bias_;    // [experts] or empty
  std::vector<float> selection_bias_;
  std::vector<float> expert_scale_;
  std::vector<std::int32_t> table_;
};

}  // namespace sluice
