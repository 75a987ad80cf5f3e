// SPDX-License-Identifier: Apache-2.0
// How codes and scales become float32, as far as it is the same for every vector width. Only the kernels.cpp
// of a backend includes this; everything is in an anonymous namespace (kernel.h says why).
//
// A decoder of codes takes kStep columns at a time: step<B>(codes, s, use) decodes the columns s * kStep and
// following of a chain, for B blocks whose chains start at codes[b], and calls use(k, w) for each of them in
// order, w[b] being column k of block b, a lane a row. A decoder of scales has scale(at): the scale of a
// group, a lane a row. Both have kUnit, a power of two that they leave out and that is multiplied at the end.
#pragma once

#include <cstddef>

#include "experts/cpu/common/layout.h"

namespace sluice::cpu {
namespace {

template <class V>
struct F32Codes {
  static constexpr int kStep = 1;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void step(const std::byte* const (&codes)[B], int s, Use&& use) {
    typename V::Reg w[B];
    for (int b = 0; b < B; ++b) w[b] = V::load(reinterpret_cast<const float*>(codes[b]) + s * V::kLanes);
    use(s, w);
  }
};

template <class V>
struct F16Codes {
  static constexpr int kStep = 1;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void step(const std::byte* const (&codes)[B], int s, Use&& use) {
    typename V::Reg w[B];
    for (int b = 0; b < B; ++b) w[b] = V::load_f16(codes[b] + 2 * s * V::kLanes);
    use(s, w);
  }
};

template <class V>
struct Bf16Codes {
  static constexpr int kStep = 2;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void step(const std::byte* const (&codes)[B], int s, Use&& use) {
    typename V::Dwords pair[B];
    typename V::Reg w[B];
    for (int b = 0; b < B; ++b) pair[b] = V::load_dwords(codes[b] + 4 * s * V::kLanes);
    for (int b = 0; b < B; ++b) w[b] = V::low_bf16(pair[b]);
    use(2 * s, w);
    for (int b = 0; b < B; ++b) w[b] = V::high_bf16(pair[b]);
    use(2 * s + 1, w);
  }
};

template <class V>
struct E4m3Codes {
  static constexpr int kStep = 2;
  static constexpr float kUnit = 256;

  template <int B, class Use>
  [[gnu::always_inline]] static inline void step(const std::byte* const (&codes)[B], int s, Use&& use) {
    typename V::Words words[B];
    typename V::Reg w[B];
    for (int b = 0; b < B; ++b) words[b] = V::load_e4m3(codes[b] + 2 * s * V::kLanes);
    for (int b = 0; b < B; ++b) w[b] = V::first_f16(words[b]);
    use(2 * s, w);
    for (int b = 0; b < B; ++b) w[b] = V::second_f16(words[b]);
    use(2 * s + 1, w);
  }
};

template <class V>
struct NoScale {
  static constexpr float kUnit = 1;
  static typename V::Reg scale(const std::byte*) { return V::set(1); }
};

/// Code 0 is 2^-127, a subnormal. 255 becomes infinity here and NaN by the row's factor.
template <class V>
struct E8m0Scale {
  static constexpr float kUnit = 1;
  static typename V::Reg scale(const std::byte* at) { return V::load_e8m0(at); }
};

template <class V>
struct E4m3Scale {
  static constexpr float kUnit = 256;
  static typename V::Reg scale(const std::byte* at) { return V::load_e4m3_scales(at); }
};

template <class V>
struct FloatScale {
  static constexpr float kUnit = 1;
  static typename V::Reg scale(const std::byte* at) {
    return V::broadcast(reinterpret_cast<const float*>(at));
  }
};

/// A format: its layout and how its codes and scales are read.
template <const Layout& kOf, class Codes, class Scale>
struct Decoder : Codes, Scale {
  static constexpr Layout kLayout = kOf;
  static constexpr float kUnit = Codes::kUnit * Scale::kUnit;
};

}  // namespace
}  // namespace sluice::cpu
