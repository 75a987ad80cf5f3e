// SPDX-License-Identifier: Apache-2.0
// Runs a layer on a backend and holds it against the definition: bit for bit on exact numbers, within
// roundings otherwise.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sluice/layer.h"
#include "testing/closeness.h"
#include "testing/drawn_layer.h"
#include "testing/drawn_lora.h"
#include "testing/reference_run.h"
#include "tests/conformance/cases.h"

namespace sluice::conformance {

struct Outputs {
  std::vector<float> experts_out, block_out;
  double unit;                                           // of what the backend rounds: testing::unit_of
  testing::Rounding rounding = testing::Rounding::none;  // what its definition rounds: testing::rounding_of
  bool operator==(const Outputs&) const = default;
};

/// Expects what `comparison.unit` rounds to explain all errors. An intermediate rounded to bf16 moves an
/// element by half a unit of its magnitude, and no more; that is asked for beside what closeness asks for.
/// How far a row of few elements is off as a whole depends on what cancels in them, so of rows of fewer than
/// eight only the bound is.
void expect_close(const char* what, const testing::Comparison& comparison);

/// A drawn layer and a call on it, with the definition's results. Shared by all backends.
class Problem {
 public:
  Problem(const Case& made, testing::Numbers numbers, testing::CallShape shape, std::uint64_t seed = 1);
  /// The same layer on other ids and weights.
  Problem with_routing(std::vector<std::int32_t> ids, std::vector<float> weights) const;
  /// The same with other adapters for the tokens.
  Problem with_adapter_ids(std::vector<std::int32_t> ids) const;
  /// The same with one element of hidden, which must be f32, replaced.
  Problem with_value(int token, int element, float value) const;

  const LayerSpec& spec() const { return made_.spec; }
  const std::string& name() const { return made_.name; }
  const testing::ReferenceResult& definition() const { return definition_; }
  /// For a backend that rounds activations.
  const testing::ReferenceResult& definition(testing::Rounding rounding) const;
  const testing::DrawnCall& call() const { return call_; }
  const LayerWeights& weights() const { return weights_; }
  const testing::DrawnLora& lora() const { return lora_; }
  const std::vector<std::int32_t>& expert_map() const { return made_.expert_map; }
  bool exact() const { return numbers_ == testing::Numbers::exact; }

  /// Packs for `backend`, a team of `threads`.
  Layer layer(const Backend& backend, int threads = 2) const;
  /// Runs with a workspace for `tokens_at_once` tokens; 0 for all.
  Outputs run(const Layer& layer, int tokens_at_once = 0) const;
  /// The same with other adapters in place of the drawn ones.
  Outputs run(const Layer& layer, int tokens_at_once, std::span<const LoraAdapter> adapters) const;
  /// Records failures unless `out` is what the definition says.
  void expect_right(const Outputs& out) const;
  /// Within roundings of another definition than this problem's own.
  void expect_close(const Outputs& out, const testing::ReferenceResult& definition) const;
  /// layer, run, expect_right, with the case's and the backend's names in a failure.
  void check(const Backend& backend) const;

 private:
  Problem copy() const;
  void define();
  testing::ReferenceResult defined(testing::Rounding rounding) const;

  Case made_;
  testing::Numbers numbers_;
  LayerWeights weights_;
  testing::DrawnCall call_;
  testing::DrawnLora lora_;
  testing::ReferenceResult definition_ = {};
  mutable std::optional<testing::ReferenceResult> rounded_ = {};  // once it is asked for
};

}  // namespace sluice::conformance
