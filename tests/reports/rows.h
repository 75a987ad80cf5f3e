// SPDX-License-Identifier: Apache-2.0
// Drawn inputs, routers to hold against the library's, and rows that are already with their experts.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "tests/reports/toy.h"

namespace sluice::reports {

inline constexpr CallMode kContiguous = CallModes::of<call::Contiguous>();
inline constexpr CallMode kBatched = CallModes::of<call::Batched>();
/// What output rows hold before a call.
inline constexpr float kUnwritten = -12345;

/// The definition.
const Backend* reference();

/// Normal numbers, [rows, width].
std::vector<float> draw_rows(int rows, int width, std::uint64_t seed);
/// ids [tokens, top_k], distinct for a token, and weights that sum to 1.
Call draw_call(const LayerSpec& spec, int tokens, std::uint64_t seed);

double norm(std::span<const float> values);
double norm(std::span<const double> values);
double rel_l2(std::span<const float> got, std::span<const float> want);
double rel_l2(std::span<const float> got, std::span<const double> want);

std::vector<std::int32_t> ids_of(const Output& out, int token, int top_k);
/// The layer's own router decides.
Output run_own_router(const Layer& layer, const Call& call);

/// A drawn router of bf16 weights and a selection bias, and its ids in double.
class RandomRouter {
 public:
  RandomRouter(const LayerSpec& spec, std::uint64_t seed);
  RouterWeights weights() const;
  /// The token's ids by falling sigmoid plus bias.
  std::vector<std::int32_t> sigmoid_ids(const Call& call, int token) const;

 private:
  int experts_, hidden_, top_k_;
  std::shared_ptr<const format::Encoded> weight_;
  std::vector<float> bias_;
};

/// Rows of a batched call: expert e's are the first counts[e] of max_tokens, each `used`; all others are
/// `filler`, NaN by default.
struct Batched {
  std::vector<std::int32_t> counts;
  int max_tokens = 0;
  std::vector<float> used;  // [hidden], or [counts' sum, hidden]
  float filler = std::numeric_limits<float>::quiet_NaN();
};
/// The output rows, kUnwritten where nothing was written.
std::vector<float> run_batched(const Backend& backend, const Toy& toy, const Batched& rows);

/// Contiguous rows: those of expert e from offsets[e] to offsets[e + 1].
std::vector<float> run_contiguous(const Layer& layer, const std::vector<std::int32_t>& offsets,
                                  const std::vector<float>& hidden);

/// The call with the layer's experts dealt out to ranks, and the ordered sum of their rows.
std::vector<float> over_ranks(const Backend& backend, const Toy& toy, const Call& call,
                              const std::vector<std::vector<std::int32_t>>& ranks);

}  // namespace sluice::reports
