// SPDX-License-Identifier: Apache-2.0
// Backends that round inputs and the intermediate to int8: the rounding, numbers that int8 holds bit for bit,
// and the same bits whatever a token shares its call with, whoever runs it, and on vectors of any width. How
// near they come to the definition with the same rounding is what tests/conformance has.
#include <cmath>
#include <cstring>
#include <limits>

#include "experts/cpu/common/to_int8.h"
#include "format/bf16.h"
#include "testing/round_int8.h"
#include "testing/rounding.h"
#include "tests/cpu/subject.h"

namespace sluice::testing {
namespace {

using cpu::Int8Columns;
using cpu::kDigitColumns;

// ---- rows

/// Column c, by the order that digits.h states.
int code(const std::vector<Int8Columns>& from, int column) {
  const int within = column % kDigitColumns;
  const std::int32_t dword =
      from[static_cast<std::size_t>(column / kDigitColumns)].codes[2 * (within / 8) + within % 2];
  return static_cast<std::int8_t>(dword >> 8 * (within % 8 / 2));
}

std::vector<Int8Columns> convert(const std::vector<float>& row) {
  std::vector<Int8Columns> out(row.size() / kDigitColumns);
  EXPECT_TRUE(cpu::to_int8(row.data(), static_cast<int>(row.size()), out.data()));
  return out;
}

std::vector<float> normal_row(int columns, std::uint64_t seed) {
  Draw draw(seed);
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<float>(std::ldexp(draw.normal(), static_cast<int>(i / 32) * 17 - 70));
  return row;
}

TEST(CpuInt8, IsTheNearestStepOfTheLargestOfThirtyTwo) {
  const std::vector<float> row = normal_row(320, 1);
  const std::vector<Int8Columns> units = convert(row);
  for (int u = 0; u < 10; ++u) {
    float largest = 0;
    for (int i = 32 * u; i < 32 * u + 32; ++i) largest = std::max(largest, std::fabs(row[i]));
    EXPECT_EQ(units[u].step, largest / 127) << u;
    int sums[2][2] = {}, most = 0;  // of halves, of columns with bytes 0 and 1 or 2 and 3
    for (int i = 32 * u; i < 32 * u + 32; ++i) {
      const int q = code(units, i);
      EXPECT_LE(std::fabs(row[i] - double{units[u].step} * q), 0.500001 * units[u].step) << i;
      sums[i % 32 / 16][i % 8 / 4] += q;
      most = std::max(most, std::abs(q));
    }
    EXPECT_EQ(most, 127);
    for (int word = 0; word < 2; ++word) {
      const auto got = [&](int kind) { return static_cast<std::int16_t>(units[u].sums[kind] >> 16 * word); };
      EXPECT_EQ(got(cpu::kInt8First), sums[0][word]) << u;
      EXPECT_EQ(got(cpu::kInt8Second), sums[1][word]) << u;
      EXPECT_EQ(got(cpu::kInt8Whole), sums[0][word] + sums[1][word]) << u;
    }
    EXPECT_EQ(units[u].sum, static_cast<float>(sums[0][0] + sums[0][1] + sums[1][0] + sums[1][1])) << u;
  }
}

/// The definition's rounding is written apart from the kernels'.
TEST(CpuInt8, RoundsAsTheDefinitionDoes) {
  const std::vector<float> row = normal_row(320, 2);
  const std::vector<Int8Columns> units = convert(row);
  const std::vector<double> x(row.begin(), row.end());
  std::vector<double> rounded(row.size()), slack(row.size(), 1);
  ASSERT_TRUE(round_to_int8({.x = x.data()}, 320, rounded.data(), slack.data()));
  for (int i = 0; i < 320; ++i) {
    EXPECT_EQ(rounded[static_cast<std::size_t>(i)], double{units[i / 32].step} * code(units, i)) << i;
    EXPECT_EQ(slack[static_cast<std::size_t>(i)], 0) << i;
  }
}

TEST(CpuInt8, TiesGoToEven) {
  std::vector<float> row(32, 0.0f);
  row[0] = 127;
  for (int i = 1; i < 32; ++i) row[i] = static_cast<float>(i) - 16.5f;
  const std::vector<Int8Columns> units = convert(row);
  EXPECT_EQ(units[0].step, 1.0f);
  for (int i = 1; i < 32; ++i) EXPECT_EQ(code(units, i), std::nearbyint(row[i])) << i;
}

TEST(CpuInt8, ZerosAndTheLargestNumbers) {
  std::vector<float> row(64, -0.0f);
  row[40] = 0x1p110f;
  row[41] = -0x1p110f;
  const std::vector<Int8Columns> units = convert(row);
  EXPECT_EQ(units[0].step, 0.0f);
  EXPECT_EQ(units[0].sum, 0.0f);
  EXPECT_EQ(units[1].step, 0x1p110f / 127);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(code(units, i), i == 40 ? 127 : i == 41 ? -127 : 0) << i;
}

TEST(CpuInt8, RefusesWhatHasNoStep) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), 0x1p-101f, -0x1p-149f, -0x1.000002p110f}) {
    std::vector<float> row(64, 0.0f);
    row[63] = value;
    std::vector<Int8Columns> out(2);
    EXPECT_FALSE(cpu::to_int8(row.data(), 64, out.data())) << value;
    const std::vector<double> x(row.begin(), row.end());
    std::vector<double> rounded(64), slack(64);
    EXPECT_FALSE(round_to_int8({.x = x.data()}, 64, rounded.data(), slack.data())) << value;
  }
}

/// Beside the middle between two steps a value that comes with an error may be rounded either way.
TEST(CpuInt8, TheDefinitionAllowsAStepWhereOneMayBeTaken) {
  std::vector<double> x(32, 0.0), reach(32, 0.0), rounded(32), slack(32);
  x[0] = 127, x[1] = 3.4, x[2] = 3.4999999, x[3] = 3.5000001;
  std::fill(reach.begin() + 1, reach.end(), 1.0);
  reach[0] = 127;
  ASSERT_TRUE(round_to_int8({.x = x.data(), .reach = reach.data()}, 32, rounded.data(), slack.data()));
  EXPECT_LT(slack[1], 100);
  const double step = 1 / (4 * 0x1p-24);
  EXPECT_NEAR(slack[2], step, 100);
  EXPECT_NEAR(slack[3], step, 100);
}

// ---- layers

constexpr const char* kInt8Subjects[] = {"cpu.avx2_int8", "cpu.avx512_int8", "portable_int8.16"};

class CpuInt8Layer : public Subject {
 protected:
  /// Portable vectors are fifty times slower: every other format.
  static std::vector<Format> formats() {
    std::vector<Format> formats;
    int at = 0;
    backend_named("cpu.avx2_int8").can.weights.each([&](Format format) {
      if (!portable() || at++ % 2 == 0) formats.push_back(format);
    });
    return formats;
  }
  static bool portable() { return std::string_view(GetParam()) == "portable_int8.16"; }
  std::vector<float> run_here(const DrawnLayer& layer, const DrawnCall& call) {
    return run_once(layer, call);
  }
  /// With zero points and groups of `columns`, of integers.
  static ExpertsSpec in_groups(ExpertsSpec spec, Format format, int columns) {
    return is_integer(format) ? grouped(spec, {.columns = columns, .zero_points = columns != 64}) : spec;
  }
};

bool same_bits(const std::vector<float>& a, const float* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

/// One input of a token is not 0, and gates and ups are 0 or more than the limit of 127, so that mids are 0
/// or 127 squared, up to their sign: int8 holds both, and every sum is an integer. A token for every column.
TEST_P(CpuInt8Layer, NumbersThatInt8HoldsAreExact) {
  for (const Format format : formats())
    for (const int columns : {16, 32, 64}) {
      if (!is_integer(format) && columns != 32) continue;
      ExpertsSpec spec = in_groups(plain_spec(format, 160, 96), format, columns);
      spec.params = {.limit = 127, .slope = 1e30f};
      const DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
      DrawnCall call = draw_call(spec, spec.hidden, Numbers::exact, 11);
      for (int t = 0; t < spec.hidden; ++t)
        for (int c = 0; c < spec.hidden; ++c)
          call.set(spec, t, c, c != t ? 0.0f : t % 3 == 0 ? -508.0f : 508);
      const std::vector<float> got = run_here(layer, call);
      const std::vector<double> want = define(layer, call).out;
      std::size_t zeros = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], want[i]) << format.str() << ", groups of " << columns << ", token "
                                   << i / spec.hidden << ", element " << i % spec.hidden;
        zeros += want[i] == 0;
      }
      EXPECT_LT(zeros, got.size() / 4) << format.str();
    }
}

/// What is rounded and judged is not small: without the rounding the same numbers are within float32.
TEST_P(CpuInt8Layer, OthersAreRounded) {
  for (const Format format : formats()) {
    const DrawnLayer layer = draw_layer(full_spec(format, 200, 76), Numbers::normal, 1);
    const DrawnCall call = draw_call(layer.spec, 4, Numbers::normal, 2);
    const std::vector<float> got = run_here(layer, call);
    const std::vector<double> want = define(layer, call).out;
    double error2 = 0, want2 = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error2 += (got[i] - want[i]) * (got[i] - want[i]);
      want2 += want[i] * want[i];
    }
    EXPECT_GT(std::sqrt(error2 / want2), 1e-3) << format.str();
    EXPECT_LT(std::sqrt(error2 / want2), kInt8RelL2) << format.str();
  }
}

TEST_P(CpuInt8Layer, SameBitsInAnyBatch) {
  for (const Format format : formats()) {
    const ExpertsSpec spec = full_spec(format, 200, 76);
    const auto packed = pack(subject(), draw_layer(spec, Numbers::normal, 1), *team_);
    for (const int tokens : {2, 3, 7, 27}) {
      if (portable() && tokens != 7) continue;
      const DrawnCall call = draw_call(spec, tokens, Numbers::normal, 2);
      const std::vector<float> together = run(*packed, call, *team_);
      for (int t = 0; t < tokens; ++t)
        ASSERT_TRUE(
            same_bits(run(*packed, one_token(spec, call, t), *team_), together.data() + t * spec.hidden))
            << format.str() << ", token " << t << " of " << tokens;
    }
  }
}

TEST_P(CpuInt8Layer, SameBitsOnAnyVector) {
  if (portable()) GTEST_SKIP() << "the others are compared with it";
  for (const Format format : formats())
    for (const int columns : {16, 64, 0}) {
      if (!is_integer(format) && columns != 16) continue;
      const ExpertsSpec spec = in_groups(full_spec(format, 208, 76), format, columns);
      const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
      // Blocks of 256 columns make the layer four times as large.
      const bool large = geometry(format).block_cols > 32;
      for (const int tokens : large ? std::vector{5} : std::vector{1, 5, 20}) {
        const DrawnCall call = draw_call(spec, tokens, Numbers::normal, 2);
        const auto portable = run(*pack(backend_named("portable_int8.16"), layer, *team_), call, *team_);
        EXPECT_TRUE(same_bits(run_here(layer, call), portable.data()))
            << format.str() << ", groups of " << columns << ", " << tokens << " tokens";
      }
    }
}

TEST_P(CpuInt8Layer, ANeighbourThatIsNotFiniteChangesNothing) {
  for (const char* name : {"mxfp4", "nvfp4", "int4"}) {
    ExpertsSpec spec = full_spec(format_named(name), 192, 76);
    spec.experts = spec.local_experts = spec.top_k = 1;  // all tokens are in one tile
    const auto packed = pack(subject(), draw_layer(spec, Numbers::normal, 1), *team_);
    DrawnCall call = draw_call(spec, 5, Numbers::normal, 2);
    call.set(spec, 2, 7, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> together = run(*packed, call, *team_);
    for (const int t : {0, 1, 3, 4})
      EXPECT_TRUE(
          same_bits(run(*packed, one_token(spec, call, t), *team_), together.data() + t * spec.hidden))
          << name << ", token " << t;
    EXPECT_TRUE(std::isnan(together[2 * static_cast<std::size_t>(spec.hidden)]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuInt8Layer, ::testing::ValuesIn(kInt8Subjects), subject_name);

/// A cache or a process that packs for one can run the other.
TEST(CpuInt8, PacksAsItsExactBackend) {
  const auto team = make_thread_team(2);
  for (const char* name : {"cpu.avx2", "cpu.avx512"}) {
    const Backend &exact = backend_named(name), &rounded = backend_named(std::string(name) + "_int8");
    if (!why_not(exact).empty() || !why_not(rounded).empty()) continue;
    rounded.can.weights.each([&](Format format) {
      const DrawnLayer layer = draw_layer(full_spec(format, 200, 76), Numbers::normal, 1);
      const auto a = pack(exact, layer, *team), b = pack(rounded, layer, *team);
      const auto bytes = exact.keeping.bytes(*a), others = rounded.keeping.bytes(*b);
      ASSERT_EQ(bytes.size(), others.size());
      EXPECT_EQ(std::memcmp(bytes.data(), others.data(), bytes.size()), 0) << name << ", " << format.str();
    });
  }
}

}  // namespace
}  // namespace sluice::testing
