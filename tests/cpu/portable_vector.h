// SPDX-License-Identifier: Apache-2.0
// A vector of plain arrays for the kernels' templates. Included by portable.cpp and portable_tiles.cpp alone;
// everything is in an anonymous namespace, as in the backends' kernels.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/bits.h"
#include "format/bf16.h"
#include "format/e2m1.h"
#include "format/f16.h"

namespace sluice::testing {
namespace {

template <class Lane, int kLanes, class Make>
std::array<Lane, kLanes> each(Make make) {
  std::array<Lane, kLanes> lanes{};
  for (int i = 0; i < kLanes; ++i) lanes[i] = make(i);
  return lanes;
}

template <int N>
struct Vector {
  using Reg = std::array<float, N>;
  using Dwords = std::array<std::uint32_t, N>;
  using Words = std::array<std::uint16_t, 2 * N>;
  static constexpr int kLanes = N;
  static constexpr int kTile = 3;
  static constexpr int kDirect = 2;

  static Reg zero() { return set(0); }
  static Reg set(float value) {
    return each<float, N>([&](int) { return value; });
  }
  static Reg load(const float* at) {
    return each<float, N>([&](int i) { return at[i]; });
  }
  static void store(float* at, const Reg& v) { std::copy(v.begin(), v.end(), at); }
  static Reg broadcast(const float* at) { return set(*at); }
  static void prefetch(const std::byte*) {}
  static Reg mul(Reg a, Reg b) {
    return each<float, N>([&](int i) { return a[i] * b[i]; });
  }
  static Reg add(Reg a, Reg b) {
    return each<float, N>([&](int i) { return a[i] + b[i]; });
  }
  static Reg fma(Reg a, Reg b, Reg c) {
    return each<float, N>([&](int i) { return std::fma(a[i], b[i], c[i]); });
  }

  static constexpr int kDigitTile = 2, kInt8Tile = 3, kInt8WordTile = 4;
  template <class From>
  static Dwords each_byte(const Dwords& v, From from) {
    return each<std::uint32_t, N>([&](int i) {
      std::uint32_t out = 0;
      for (int b = 0; b < 32; b += 8) out |= static_cast<std::uint32_t>(from(v[i] >> b & 0xFFu) & 0xFFu) << b;
      return out;
    });
  }
  static std::int32_t word(std::uint32_t dword, int i) { return static_cast<std::int16_t>(dword >> 16 * i); }
  static std::uint32_t words(std::int32_t low, std::int32_t high) {
    return (static_cast<std::uint32_t>(low) & 0xFFFFu) | static_cast<std::uint32_t>(high) << 16;
  }
  static Dwords broadcast_dword(const std::int32_t* at) {
    return each<std::uint32_t, N>([&](int) { return static_cast<std::uint32_t>(*at); });
  }
  static Dwords load_words(const std::int16_t* at) {
    return load_dwords(reinterpret_cast<const std::byte*>(at));
  }
  static void store_words(std::int16_t* at, const Dwords& v) { std::memcpy(at, v.data(), sizeof v); }
  static Dwords low_nibbles(const Dwords& v) {
    return each_byte(v, [](std::uint32_t b) { return b & 0xFu; });
  }
  static Dwords high_nibbles(const Dwords& v) {
    return each_byte(v, [](std::uint32_t b) { return b >> 4; });
  }
  static Dwords e2m1_codes(const Dwords& nibbles) {
    return each_byte(nibbles,
                     [](std::uint32_t b) { return static_cast<std::uint32_t>(12 + 2 * format::kE2m1[b]); });
  }
  static Dwords set_dword(std::int32_t value) {
    return each<std::uint32_t, N>([&](int) { return static_cast<std::uint32_t>(value); });
  }
  static Dwords set_words(int value) {
    return each<std::uint32_t, N>([&](int) { return words(value, value); });
  }
  static Dwords and_bits(const Dwords& a, const Dwords& b) {
    return each<std::uint32_t, N>([&](int i) { return a[i] & b[i]; });
  }
  static Dwords or_bits(const Dwords& a, const Dwords& b) {
    return each<std::uint32_t, N>([&](int i) { return a[i] | b[i]; });
  }
  static Dwords minus(const Dwords& v) {
    return each<std::uint32_t, N>([&](int i) { return 0u - v[i]; });
  }
  template <int kBits>
  static Dwords shift_left(const Dwords& v) {
    return each<std::uint32_t, N>([&](int i) { return v[i] << kBits; });
  }
  template <int kBits>
  static Dwords shift_right(const Dwords& v) {
    return each<std::uint32_t, N>([&](int i) { return v[i] >> kBits; });
  }
  template <int kBits>
  static Dwords shift_right_signed(const Dwords& v) {
    return each<std::uint32_t, N>(
        [&](int i) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(v[i]) >> kBits); });
  }
  static Dwords load_bytes(const std::byte* at) {
    return each<std::uint32_t, N>([&](int i) { return std::to_integer<std::uint32_t>(at[i]); });
  }
  static Dwords even_bytes(const Dwords& v) {
    return each<std::uint32_t, N>([&](int i) { return v[i] & 0x00FF00FFu; });
  }
  static Dwords odd_bytes(const Dwords& v) {
    return each<std::uint32_t, N>([&](int i) { return v[i] >> 8 & 0x00FF00FFu; });
  }
  static Dwords multiply_bytes(const Dwords& codes, const Dwords& x) {
    return each<std::uint32_t, N>([&](int i) {
      std::int32_t sum[2] = {};
      for (int b = 0; b < 4; ++b)
        sum[b / 2] += static_cast<std::uint8_t>(codes[i] >> 8 * b) * static_cast<std::int8_t>(x[i] >> 8 * b);
      return words(sum[0], sum[1]);
    });
  }
  static Dwords multiply_words(const Dwords& codes, const Dwords& x) {
    return each<std::uint32_t, N>([&](int i) {
      return static_cast<std::uint32_t>(word(codes[i], 0) * word(x[i], 0) +
                                        word(codes[i], 1) * word(x[i], 1));
    });
  }
  static Dwords multiply_low_words(const Dwords& a, const Dwords& b) {
    return each<std::uint32_t, N>(
        [&](int i) { return words(word(a[i], 0) * word(b[i], 0), word(a[i], 1) * word(b[i], 1)); });
  }
  /// As VNNI has them; one of the two portable subjects goes without.
  static Dwords dot_bytes(const Dwords& sum, const Dwords& codes, const Dwords& x) requires(N == 16) {
    return each<std::uint32_t, N>([&](int i) {
      std::uint32_t dword = sum[i];
      for (int b = 0; b < 32; b += 8)
        dword += static_cast<std::uint32_t>(static_cast<std::uint8_t>(codes[i] >> b) *
                                            static_cast<std::int8_t>(x[i] >> b));
      return dword;
    });
  }
  static Dwords dot_words(const Dwords& sum, const Dwords& codes, const Dwords& x) requires(N == 16) {
    return add_dwords(sum, multiply_words(codes, x));
  }
  static Dwords add_words(const Dwords& a, const Dwords& b) {
    return each<std::uint32_t, N>(
        [&](int i) { return words(word(a[i], 0) + word(b[i], 0), word(a[i], 1) + word(b[i], 1)); });
  }
  static Dwords add_dwords(const Dwords& a, const Dwords& b) {
    return each<std::uint32_t, N>([&](int i) { return a[i] + b[i]; });
  }
  static Dwords add_pairs(const Dwords& v) {
    return each<std::uint32_t, N>(
        [&](int i) { return static_cast<std::uint32_t>(word(v[i], 0) + word(v[i], 1)); });
  }
  static Reg to_float(const Dwords& v) {
    return each<float, N>([&](int i) { return static_cast<float>(static_cast<std::int32_t>(v[i])); });
  }

  static Reg load_f16(const std::byte* at) {
    return each<float, N>(
        [&](int i) { return format::f16_to_float(sluice::load<std::uint16_t>(at + 2 * i)); });
  }
  static Reg load_bf16(const std::byte* at) {
    return each<float, N>(
        [&](int i) { return format::bf16_to_float(sluice::load<std::uint16_t>(at + 2 * i)); });
  }
  static Dwords load_dwords(const std::byte* at) {
    return each<std::uint32_t, N>([&](int i) { return sluice::load<std::uint32_t>(at + 4 * i); });
  }
  static Reg low_bf16(const Dwords& pair) {
    return each<float, N>([&](int i) { return bits_as<float>(pair[i] << 16); });
  }
  static Reg high_bf16(const Dwords& pair) {
    return each<float, N>([&](int i) { return bits_as<float>(pair[i] & 0xFFFF0000u); });
  }

  static std::uint16_t e4m3_as_f16(std::byte byte) {
    const auto code = std::to_integer<std::uint16_t>(byte);
    return static_cast<std::uint16_t>((code & 0x80) << 8 | (code & 0x7F) << 7);
  }
  static Words load_e4m3(const std::byte* at) {
    return each<std::uint16_t, 2 * N>([&](int i) { return e4m3_as_f16(at[i]); });
  }
  static Reg first_f16(const Words& words) {
    return each<float, N>([&](int i) { return format::f16_to_float(words[i]); });
  }
  static Reg second_f16(const Words& words) {
    return each<float, N>([&](int i) { return format::f16_to_float(words[N + i]); });
  }
  static Reg load_e4m3_scales(const std::byte* at) {
    return each<float, N>([&](int i) { return format::f16_to_float(e4m3_as_f16(at[i])); });
  }
  static Reg load_e8m0(const std::byte* at) {
    return each<float, N>([&](int i) {
      const std::uint32_t code = std::to_integer<std::uint32_t>(at[i]);
      return bits_as<float>(code == 0 ? 0x00400000u : code << 23);
    });
  }
};

template <int N>
struct Fp4 {
  static constexpr int kStep = 8;
  static constexpr float kUnit = 1;

  template <int B, class Use>
  static void step(const std::byte* const (&codes)[B], int s, Use&& use) {
    for (int k = 0; k < kStep; ++k) {
      std::array<float, N> w[B];
      for (int b = 0; b < B; ++b)
        w[b] = each<float, N>([&](int row) {
          return format::kE2m1[sluice::load<std::uint32_t>(codes[b] + 4 * (N * s + row)) >> 4 * k & 15u];
        });
      use(kStep * s + k, w);
    }
  }
};

}  // namespace
}  // namespace sluice::testing
