// SPDX-License-Identifier: Apache-2.0
// Tiles of bf16 on plain arrays: what the kernels for AMX do, to the bit, on any machine.
#include "experts/cpu/common/forward.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/multiply_amx.h"
#include "experts/cpu/common/pack.h"
#include "tests/cpu/portable.h"
#include "tests/cpu/portable_vector.h"

namespace sluice::testing {
namespace {

/// Eight registers of up to 16 rows of 16 dwords, those of a thread.
struct TileRegisters {
  int rows[8] = {};
  std::uint32_t dwords[8][16][16] = {};
};
thread_local TileRegisters registers;

/// As tiles_amx.h.
struct Tiles {
  static void configure(int first, int others) {
    registers = {.rows = {first, first, others, others, first, others, 16, 16}};
  }
  /// Whoever then uses a tile without `configure` has none of its rows.
  static void release() { registers = {}; }

  template <int kTile>
  static void zero() {
    std::memset(registers.dwords[kTile], 0, sizeof registers.dwords[kTile]);
  }
  template <int kTile>
  static void load(const void* at, std::size_t stride) {
    zero<kTile>();
    for (int m = 0; m < registers.rows[kTile]; ++m)
      std::memcpy(registers.dwords[kTile][m], static_cast<const std::byte*>(at) + m * stride, 64);
  }
  template <int kTile>
  static void store(void* at, std::size_t stride) {
    for (int m = 0; m < registers.rows[kTile]; ++m)
      std::memcpy(static_cast<std::byte*>(at) + m * stride, registers.dwords[kTile][m], 64);
  }
  template <int kSums, int kInputs, int kWeights>
  static void dot() {
    for (int m = 0; m < registers.rows[kSums]; ++m)
      for (int n = 0; n < 16; ++n) {
        float first = 0, second = 0;
        for (int k = 0; k < 16; ++k) {
          const std::uint32_t x = registers.dwords[kInputs][m][k], w = registers.dwords[kWeights][k][n];
          first = normal(std::fma(low(x), low(w), first));
          second = normal(std::fma(high(x), high(w), second));
        }
        std::uint32_t& sum = registers.dwords[kSums][m][n];
        const float both = normal(first + second);
        sum = bits_as<std::uint32_t>(normal(normal(bits_as<float>(sum)) + both));
      }
  }

 private:
  static float low(std::uint32_t pair) { return normal(bits_as<float>(pair << 16)); }
  static float high(std::uint32_t pair) { return normal(bits_as<float>(pair & 0xFFFF0000u)); }
  /// Subnormal numbers are 0, before and after.
  static float normal(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? 0 * value : value; }
};

struct TileVector : Vector<16> {
  using Tiles = testing::Tiles;

  static void store_dwords(std::int32_t* at, const Dwords& v) { std::memcpy(at, v.data(), sizeof v); }
  template <int kBits>
  static Dwords shift_words_right(const Dwords& v) {
    return each_dword(
        v, [](std::uint32_t dword) { return (dword & 0xFFFFu) >> kBits | (dword >> 16 >> kBits) << 16; });
  }
  static Dwords e2m1_pairs(const Dwords& words) {
    return each_word(words, [](std::uint32_t word) { return format::kE2m1[word & 15]; });
  }
  static Dwords int4_pairs(const Dwords& words) {
    return each_word(words, [](std::uint32_t word) { return static_cast<float>(word & 15) - 8; });
  }
  static Dwords int5_pairs(const Dwords& words) {
    return each_word(words, [](std::uint32_t word) {
      const int code = static_cast<int>(word & 31);
      return static_cast<float>(code < 16 ? code : code - 32);
    });
  }
  static void e4m3_pairs(const std::byte* at, Dwords& first, Dwords& second) {
    const auto pair = [&](int row, int column) {
      return pair_of(e4m3(at[16 * column + row]), e4m3(at[16 * (column + 1) + row]));
    };
    first = each<std::uint32_t, 16>([&](int row) { return pair(row, 0); });
    second = each<std::uint32_t, 16>([&](int row) { return pair(row, 2); });
  }

  /// Factors of both numbers of a pair: powers of two.
  static Dwords e8m0_exponents(const std::byte* at) {
    return each<std::uint32_t, 16>([&](int row) {
      return bits_as<std::uint32_t>(std::ldexp(1.0f, std::to_integer<int>(at[row]) - 127));
    });
  }
  static Dwords add_exponents(const Dwords& w, const Dwords& factors) {
    return times(w, each<float, 16>([&](int row) { return bits_as<float>(factors[row]); }));
  }
  static bool all_within(const std::byte* at, int least, int most) {
    return std::all_of(at, at + 16, [&](std::byte scale) {
      return least <= std::to_integer<int>(scale) && std::to_integer<int>(scale) <= most;
    });
  }
  static Dwords times(const Dwords& w, const Reg& scale) {
    const Reg first = low_bf16(w), second = high_bf16(w);
    return each<std::uint32_t, 16>(
        [&](int row) { return pair_of(first[row] * scale[row], second[row] * scale[row]); });
  }

 private:
  template <class From>
  static Dwords each_dword(const Dwords& v, From from) {
    return each<std::uint32_t, 16>([&](int i) { return from(v[i]); });
  }
  template <class From>
  static Dwords each_word(const Dwords& v, From from) {
    return each_dword(v,
                      [&](std::uint32_t dword) { return pair_of(from(dword & 0xFFFFu), from(dword >> 16)); });
  }
  /// Of numbers that are bf16.
  static std::uint32_t pair_of(float first, float second) {
    return bits_as<std::uint32_t>(first) >> 16 | (bits_as<std::uint32_t>(second) & 0xFFFF0000u);
  }
  /// NaN codes are 480 here, as in vector_pairs.h.
  static float e4m3(std::byte code) { return format::f16_to_float(e4m3_as_f16(code)) * 256; }
};

template <const cpu::TilesFrom& kIts>
constexpr cpu::KernelTable kTable = cpu::with_tiles<TileVector>(cpu::make_table<TileVector, Fp4<16>>(), kIts);

template <const cpu::TilesFrom& kIts>
void run(const PackedExperts& packed, const Forward& call) {
  cpu::forward(kTable<kIts>, packed, call);
}

template <const cpu::TilesFrom& kIts>
constexpr Kernel kKernels[] = {{.name = "portable",
                                .tokens = {},
                                .estimate_us = nullptr,
                                .workspace_bytes = cpu::bf16_terms_workspace_bytes,
                                .run = run<kIts>}};

std::int64_t packed_bytes(const ExpertsSpec& spec) { return cpu::packed_bytes(spec, 16); }

template <const Backend& kOf>
std::unique_ptr<PackedExperts> pack(const PackInput& input) {
  return cpu::pack(kOf, 16, input);
}

constexpr int kFrom = kPortableTilesFrom;
constexpr cpu::TilesFrom kAlways{}, kOfMany{kFrom, kFrom, kFrom, kFrom, kFrom, kFrom, kFrom};

}  // namespace

constinit const Backend kPortableAmxTiles{
    .name = "portable.amx_tiles",
    .can = {.device = DeviceKinds::of<device::Cpu>()},
    .pack = pack<kPortableAmxTiles>,
    .packed_bytes = packed_bytes,
    .kernels = [] { return std::span<const Kernel>(kKernels<kAlways>); }};
constinit const Backend kPortableAmx{.name = "portable.amx",
                                     .can = {.device = DeviceKinds::of<device::Cpu>()},
                                     .pack = pack<kPortableAmx>,
                                     .packed_bytes = packed_bytes,
                                     .kernels = [] { return std::span<const Kernel>(kKernels<kOfMany>); }};

}  // namespace sluice::testing
