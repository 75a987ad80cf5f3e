// SPDX-License-Identifier: Apache-2.0
// How logits become scores, once for every kind. A score type S has:
//   static constexpr std::string_view name;
//   /// Scores of one token. NaN logits give NaN and enter no sum.
//   static void scores(std::span<const float> logits, std::span<float> out);
//   /// Scores of the selected experts to weights, in place. No NaN among them.
//   static void weights(std::span<float> selected);
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>

#include "core/choice.h"
#include "sluice/routing.h"

namespace sluice::score {

/// exp(x - largest) over their sum, in place; NaN is left alone. Equal infinities have the difference 0, so
/// that a row of -infinity is uniform and +infinity takes everything.
inline void softmax(std::span<float> values) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float x : values)
    if (x > largest) largest = x;
  float sum = 0;
  for (float& x : values) {
    x = x == largest ? 1.0f : std::exp(x - largest);
    if (!std::isnan(x)) sum += x;
  }
  if (sum > 0)
    for (float& x : values) x /= sum;
}

/// Does not overflow on either side.
inline float sigmoid(float x) {
  const float e = std::exp(-std::abs(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/// sqrt(log(1 + exp(x))), which for large x is sqrt(x) and never exp(x).
inline float sqrt_softplus(float x) {
  return std::sqrt((x < 0 ? 0.0f : x) + std::log1p(std::exp(-std::abs(x))));
}

struct Softmax {
  static constexpr std::string_view name = "softmax";
  static void scores(std::span<const float> logits, std::span<float> out) {
    std::copy(logits.begin(), logits.end(), out.begin());
    softmax(out);
  }
  static void weights(std::span<float>) {}
};

struct SoftmaxSelected {
  static constexpr std::string_view name = "softmax_selected";
  static void scores(std::span<const float> logits, std::span<float> out) {
    std::copy(logits.begin(), logits.end(), out.begin());
  }
  static void weights(std::span<float> selected) { softmax(selected); }
};

struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";
  static void scores(std::span<const float> logits, std::span<float> out) {
    std::transform(logits.begin(), logits.end(), out.begin(), sigmoid);
  }
  static void weights(std::span<float>) {}
};

/// Llama-4 takes the largest logits and weighs with their sigmoids. Selecting on sigmoids would not do:
/// beyond 17 they are all 1 in float32.
struct SigmoidSelected {
  static constexpr std::string_view name = "sigmoid_selected";
  static void scores(std::span<const float> logits, std::span<float> out) {
    std::copy(logits.begin(), logits.end(), out.begin());
  }
  static void weights(std::span<float> selected) {
    std::transform(selected.begin(), selected.end(), selected.begin(), sigmoid);
  }
};

struct SqrtSoftplus {
  static constexpr std::string_view name = "sqrt_softplus";
  static void scores(std::span<const float> logits, std::span<float> out) {
    std::transform(logits.begin(), logits.end(), out.begin(), sqrt_softplus);
  }
  static void weights(std::span<float>) {}
};

}  // namespace sluice::score

namespace sluice {

using Scores = List<struct ScoreTag, score::Softmax, score::SoftmaxSelected, score::Sigmoid,
                    score::SigmoidSelected, score::SqrtSoftplus>;

}  // namespace sluice
