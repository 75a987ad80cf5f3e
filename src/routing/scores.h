// SPDX-License-Identifier: Apache-2.0
// How logits become scores, once for every kind and for both sides of the bus: a processor and a card take
// the same steps, so that ids and weights have the same bits. A score type S has:
//   static constexpr std::string_view name;
//   static constexpr bool softmax_of_all, softmax_of_selected;
//   /// A logit's score, but for the softmax over all. NaN gives NaN.
//   static float score(float logit);
//   /// A selected expert's score to its weight, but for the softmax over the selected. Never NaN.
//   static float weight(float score);
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/bits.h"
#include "core/choice.h"
#include "core/hd.h"
#include "sluice/routing.h"

namespace sluice::score {

SLUICE_HD bool is_nan(float x) { return x != x; }
SLUICE_HD float not_a_number() { return bits_as<float>(0x7FC00000u); }
SLUICE_HD float infinity() { return bits_as<float>(0x7F800000u); }

/// exp(x) for x <= 0, and NaN for NaN. Computed in double, where it is off by less than 2^-40 of itself, and
/// rounded once; libraries of different makers differ in their last bits, this does not.
SLUICE_HD float exp_of_negative(float x) {
  if (!(x > -104.0f)) return is_nan(x) ? x : 0.0f;  // below half of the smallest number
  constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
  constexpr double kToInteger = 0x1.8p52;  // added and taken away: rounds to an integer
  const double twos = static_cast<double>(x) * kLog2E;
  const double whole = (twos + kToInteger) - kToInteger;
  const double t = (twos - whole) * kLn2;  // in +-0.35; the eleventh term is 6e-13
  double sum = 1.0 / 3628800;
  constexpr double kTerms[] = {1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                               1.0 / 24,     1.0 / 6,     1.0 / 2,    1.0,       1.0};
  for (const double term : kTerms) sum = sum * t + term;
  const auto exponent = static_cast<std::uint64_t>(static_cast<std::int64_t>(whole) + 1023);
  return static_cast<float>(sum * bits_as<double>(exponent << 52));
}

/// log(1 + x) for x in [0, 1], and NaN for NaN: twice the inverse hyperbolic tangent of x / (2 + x), in
/// double, off by less than 2^-38 of itself, and rounded once.
SLUICE_HD float log_of_one_plus(float x) {
  const double s = static_cast<double>(x) / (2.0 + static_cast<double>(x));  // at most 1/3
  const double square = s * s;
  double sum = 1.0 / 21;
  constexpr double kTerms[] = {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                               1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
  for (const double term : kTerms) sum = sum * square + term;
  return static_cast<float>(2.0 * s * sum);
}

/// A summand of a softmax. Equal infinities have the difference 0, so that a row of -infinity is uniform and
/// +infinity takes everything.
SLUICE_HD float softmax_term(float x, float largest) {
  return x == largest ? 1.0f : exp_of_negative(x - largest);
}

/// Does not overflow on either side.
SLUICE_HD float sigmoid(float x) {
  const float e = exp_of_negative(x < 0 ? x : -x);
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/// sqrt(log(1 + exp(x))), which for large x is sqrt(x) and never exp(x).
SLUICE_HD float sqrt_softplus(float x) {
  using std::sqrt;
  return sqrt((x < 0 ? 0.0f : x) + log_of_one_plus(exp_of_negative(x < 0 ? x : -x)));
}

/// A group's score, from its members' selection scores: NaN when none of them can be selected.
SLUICE_HD float of_group(GroupScore kind, const float* selection, int size) {
  float best = not_a_number(), second = best;
  for (int i = 0; i < size; ++i) {
    const float s = selection[i];
    if (is_nan(s)) continue;
    if (is_nan(best) || s > best) {
      second = best;
      best = s;
    } else if (is_nan(second) || s > second) {
      second = s;
    }
  }
  const bool finite = best > -infinity() && best < infinity();
  return kind == GroupScore::two_best && finite && !is_nan(second) ? best + second : best;
}

struct Softmax {
  static constexpr std::string_view name = "softmax";
  static constexpr bool softmax_of_all = true, softmax_of_selected = false;
  static SLUICE_HD float score(float logit) { return logit; }
  static SLUICE_HD float weight(float score) { return score; }
};

struct SoftmaxSelected {
  static constexpr std::string_view name = "softmax_selected";
  static constexpr bool softmax_of_all = false, softmax_of_selected = true;
  static SLUICE_HD float score(float logit) { return logit; }
  static SLUICE_HD float weight(float score) { return score; }
};

struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";
  static constexpr bool softmax_of_all = false, softmax_of_selected = false;
  static SLUICE_HD float score(float logit) { return sigmoid(logit); }
  static SLUICE_HD float weight(float score) { return score; }
};

/// Llama-4 takes the largest logits and weighs with their sigmoids. Selecting on sigmoids would not do:
/// beyond 17 they are all 1 in float32.
struct SigmoidSelected {
  static constexpr std::string_view name = "sigmoid_selected";
  static constexpr bool softmax_of_all = false, softmax_of_selected = false;
  static SLUICE_HD float score(float logit) { return logit; }
  static SLUICE_HD float weight(float score) { return sigmoid(score); }
};

struct SqrtSoftplus {
  static constexpr std::string_view name = "sqrt_softplus";
  static constexpr bool softmax_of_all = false, softmax_of_selected = false;
  static SLUICE_HD float score(float logit) { return sqrt_softplus(logit); }
  static SLUICE_HD float weight(float score) { return score; }
};

}  // namespace sluice::score

namespace sluice {

using Scores = List<struct ScoreTag, score::Softmax, score::SoftmaxSelected, score::Sigmoid,
                    score::SigmoidSelected, score::SqrtSoftplus>;

}  // namespace sluice
