// SPDX-License-Identifier: Apache-2.0
// Every activation, once. The reference calls apply<double>, the kernels apply<float>; nobody has a second
// copy.
//
// Comparisons are written so that NaN stays NaN: fmin and fmax would turn a NaN into the limit.
#pragma once

#include <cmath>
#include <string_view>

#include "core/choice.h"
#include "core/hd.h"
#include "sluice/spec.h"

namespace sluice::activation {

/// Which members of ActivationParams an activation reads. A spec that sets another one is refused.
struct Reads {
  bool limit = false, slope = false, shift = false, saturation = false;
};

template <class Real>
SLUICE_HD Real at_most(Real x, Real limit) {
  return x > limit ? limit : x;
}

template <class Real>
SLUICE_HD Real clamp(Real x, Real limit) {
  return x < -limit ? -limit : at_most(x, limit);
}

template <class Real>
SLUICE_HD Real sigmoid(Real x) {
  using std::exp;
  return Real(1) / (Real(1) + exp(-x));
}

/// x sigmoid(slope x). At -infinity the product is -infinity times 0; the limit of x e^x is 0.
template <class Real>
SLUICE_HD Real silu(Real x, Real slope) {
  const Real y = x * sigmoid(slope * x);
  return y != y && x == x ? Real(0) : y;
}

/// Clamps first: gate from above, up on both sides. With slope 1.702 and shift 1 it is gpt-oss, with 1 and 0
/// it is DeepSeek-V4, without a limit it is plain SwiGLU.
struct Silu {
  static constexpr std::string_view name = "silu";
  static constexpr bool gated = true;
  static constexpr Reads reads{.limit = true, .slope = true, .shift = true};
  template <class Real>
  static SLUICE_HD Real apply(Real gate, Real up, const ActivationParams& p) {
    return silu(at_most(gate, Real(p.limit)), Real(p.slope)) * (clamp(up, Real(p.limit)) + Real(p.shift));
  }
};

/// Clamps after the SiLU (Step-3.5, Ling-3.0). Not the above: for gate 8, limit 7 this gives 7, that
/// gives 6.9936.
struct SiluThenClamp {
  static constexpr std::string_view name = "silu_then_clamp";
  static constexpr bool gated = true;
  static constexpr Reads reads{.limit = true};
  template <class Real>
  static SLUICE_HD Real apply(Real gate, Real up, const ActivationParams& p) {
    return at_most(silu(gate, Real(1)), Real(p.limit)) * clamp(up, Real(p.limit));
  }
};

/// GELU by its tanh approximation (Gemma-4, Grok): gelu_pytorch_tanh. (1 + tanh z) / 2 is sigmoid(2 z), which
/// loses nothing for negative gates, where 1 + tanh z in float32 is the difference of two numbers near 1.
struct GeluTanh {
  static constexpr std::string_view name = "gelu_tanh";
  static constexpr bool gated = true;
  static constexpr Reads reads{};
  template <class Real>
  static SLUICE_HD Real apply(Real gate, Real up, const ActivationParams&) {
    const Real twice = Real(1.59576912160573071176) * (gate + Real(0.044715) * gate * gate * gate);
    const Real gelu = gate * sigmoid(twice);
    return (gelu != gelu && gate == gate ? Real(0) : gelu) * up;
  }
};

/// GELU exactly. 1 + erf z is erfc(-z), for the same reason.
struct GeluErf {
  static constexpr std::string_view name = "gelu_erf";
  static constexpr bool gated = true;
  static constexpr Reads reads{};
  template <class Real>
  static SLUICE_HD Real apply(Real gate, Real up, const ActivationParams&) {
    using std::erfc;
    const Real gelu = Real(0.5) * gate * erfc(gate * Real(-0.70710678118654752440));
    return (gelu != gelu && gate == gate ? Real(0) : gelu) * up;
  }
};

/// beta tanh(x / beta): close to x at first, and never beyond beta. Infinity leaves x as it is, for which the
/// formula has infinity times 0.
template <class Real>
SLUICE_HD Real saturate(Real x, Real beta) {
  using std::tanh;
  const Real y = beta * tanh(x / beta);
  return y != y && x == x ? x : y;
}

/// SiTU (Kimi-K3: 4 and 25): both branches saturate smoothly, and the sigmoid sees the gate as it was.
/// Without betas it is plain SwiGLU.
struct Situ {
  static constexpr std::string_view name = "situ";
  static constexpr bool gated = true;
  static constexpr Reads reads{.saturation = true};
  template <class Real>
  static SLUICE_HD Real apply(Real gate, Real up, const ActivationParams& p) {
    const Real y = saturate(gate, Real(p.situ_beta)) * sigmoid(gate);
    return (y != y && gate == gate ? Real(0) : y) * saturate(up, Real(p.situ_linear_beta));
  }
};

/// ReLU squared, no gate matrix (Nemotron-3). NaN stays NaN.
struct Relu2 {
  static constexpr std::string_view name = "relu2";
  static constexpr bool gated = false;
  static constexpr Reads reads{};
  template <class Real>
  static SLUICE_HD Real apply(Real /*gate*/, Real up, const ActivationParams&) {
    return up < Real(0) ? Real(0) : up * up;
  }
};

}  // namespace sluice::activation

namespace sluice {

using Activations = List<struct ActivationTag, activation::Silu, activation::SiluThenClamp,
                         activation::GeluTanh, activation::GeluErf, activation::Relu2, activation::Situ>;

}  // namespace sluice
