// SPDX-License-Identifier: Apache-2.0
// Layers in the shapes of published models, with weights that nobody trained: for timing, where only sizes
// matter. Unlike drawn_layer.h, which quantises numbers, codes and scales are drawn as bytes, at several
// GB/s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/executor.h"
#include "sluice/spec.h"

namespace sluice::testing {

/// "gpt-oss-20b", "deepseek-v4-flash", ...
std::span<const std::string_view> public_shapes();

/// The routed part of that model's MoE layer with all matrices in `format`: sizes, activation, biases,
/// router. Integers have groups of 128 and no zero points. Throws invalid_argument for an unknown name,
/// listing the known ones.
LayerSpec public_shape(std::string_view name, Format format);

/// Columns that share a scale, of integers; 0: a scale a row. Throws invalid_argument for other formats.
void set_group(LayerSpec& spec, int columns);

/// Weights of the routed experts, each drawn apart. Codes are never NaN and scales lie within a factor of
/// four, so that inputs of unit variance give finite outputs of about unit size. `owner` holds the memory;
/// the router is left out. The same seed gives the same bytes for any number of workers. Throws
/// out_of_memory.
LayerWeights synthetic_weights(const LayerSpec& spec, std::uint64_t seed, Executor& executor);

/// bf16 rows of normal numbers; `view` is of `rows`, also when moved.
struct HiddenStates {
  std::vector<std::byte> rows;
  RowsView view;
};
HiddenStates synthetic_hidden(int tokens, int width, std::uint64_t seed);

/// Routings in which every token goes to `top_k` different experts, all choices equally likely, with equal
/// weights.
class RandomRouting {
 public:
  RandomRouting(const ExpertsSpec& spec, int tokens, std::uint64_t seed);

  /// Draws again. The view stays valid until the next call.
  Routing next();
  /// Experts that the last draw touches.
  int distinct() const { return distinct_; }

 private:
  std::uint64_t state_;
  int tokens_, top_k_;
  int distinct_ = 0;
  std::vector<std::int32_t> deck_;  // [experts]
  std::vector<bool> seen_;          // [experts]
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace sluice::testing
