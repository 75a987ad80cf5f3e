// SPDX-License-Identifier: Apache-2.0
// Integer weights on the CPU backends: groups of every kind, zero points, orders of columns, types of scales,
// sizes that fill nothing; exactly for exact numbers, within rounding otherwise, and the same bits for every
// batch and vector.
#include <cmath>
#include <cstring>
#include <limits>

#include "format/integers.h"
#include "testing/closeness.h"
#include "tests/cpu/subject.h"

namespace sluice::testing {
namespace {

class CpuIntegers : public Subject {
 protected:
  void expect_exact(const DrawnLayer& layer, const DrawnCall& call) {
    const std::vector<float> got = run_once(layer, call);
    const std::vector<double> want = define(layer, call).out;
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], want[i]) << describe(layer, call) << ", element " << i;
  }

  void expect_close(const DrawnLayer& layer, const DrawnCall& call) {
    const std::vector<float> got = run_once(layer, call);
    const Wanted wanted = define(layer, call);
    const Closeness result = closeness(
        {.got = got, .want = wanted.out, .magnitude = wanted.magnitude, .width = layer.spec.hidden});
    EXPECT_TRUE(result.ok()) << describe(layer, call) << ": " << result.str();
  }

  /// Every token alone gives the bits that it has in the call, and so does the portable backend. Not of
  /// cpu.amx, which takes other kernels for experts of few tokens (tiles_test.cpp).
  void expect_invariant(const DrawnLayer& layer, const DrawnCall& call) {
    if (subject().name == "cpu.amx") return;
    const auto packed = pack(subject(), layer, *team_);
    const std::vector<float> together = run(*packed, call, *team_);
    const std::vector<float> portable = run(*pack(backend_named("portable.8"), layer, *team_), call, *team_);
    const std::size_t width = sizeof(float) * layer.spec.hidden;
    // Rows of bf16 have an order of sums of their own there (multiply_bf16.h, multiply_amx.h).
    if (subject().name != "cpu.avx512_bf16" && subject().name != "cpu.amx_tiles") {
      EXPECT_EQ(std::memcmp(together.data(), portable.data(), width * call.tokens), 0)
          << describe(layer, call);
    }
    for (int t = 0; t < call.tokens; ++t) {
      const std::vector<float> alone = run(*packed, one_token(layer.spec, call, t), *team_);
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + t * layer.spec.hidden, width), 0)
          << describe(layer, call) << ", token " << t;
    }
  }

  static std::string describe(const DrawnLayer& layer, const DrawnCall& call) {
    return storage_text(layer.spec.formats) + " " + std::to_string(layer.spec.hidden) + "x" +
           std::to_string(layer.spec.intermediate) + ", " + std::to_string(call.tokens) + " tokens";
  }

  /// One expert, so that all tokens share a tile.
  static ExpertsSpec lone(ExpertsSpec spec) {
    spec.experts = spec.local_experts = spec.top_k = 1;
    return spec;
  }
};

/// Groups of halves of a step, of neither halves nor steps, of steps; with zero points and act-order in turn:
/// every width meets every group, and over the widths every group meets all four.
std::vector<Grouping> groupings(Format format, std::initializer_list<int> columns) {
  std::vector<Grouping> made;
  auto turn = static_cast<unsigned>(geometry(format).code_bits);
  for (const int its : columns) {
    made.push_back({its, (turn & 1) != 0, (turn & 2) != 0});
    ++turn;
  }
  return made;
}

TEST_P(CpuIntegers, ExactNumbersAreExact) {
  for (Format format : integer_formats())
    for (const Grouping& grouping : groupings(format, {16, 20, 32, 48, 64, 128})) {
      const ExpertsSpec spec = grouped(full_spec(format, 168, 72), grouping);
      const DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
      for (int tokens : {1, 7}) expect_exact(layer, draw_call(spec, tokens, Numbers::exact, 11));
    }
}

TEST_P(CpuIntegers, RaggedShapesAreExact) {
  for (Format format : integer_formats())
    for (const Grouping& grouping : {Grouping{}, Grouping{16, true, true}, Grouping{32, true, false}}) {
      for (const auto& [hidden, intermediate] : {std::pair{35, 17}, std::pair{1, 1}, std::pair{130, 257}}) {
        const ExpertsSpec spec = grouped(full_spec(format, hidden, intermediate), grouping);
        const DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
        for (int tokens : {1, 5}) expect_exact(layer, draw_call(spec, tokens, Numbers::exact, 11));
      }
    }
}

/// Codes and digits at the ends of their ranges, where 16 bits would saturate and float32 would round twice.
TEST_P(CpuIntegers, LargestCodesAreExact) {
  for (Format format : integer_formats())
    for (int columns : {0, 16, 32})
      for (int extreme : {0, 1, 2}) {
        ExpertsSpec spec =
            lone(grouped(plain_spec(format, 288, 16), {.columns = columns, .zero_points = true}));
        spec.activation = activation_named("relu2");
        spec.formats.gate.reset();
        spec.formats.gate_grouping = {};
        spec.formats.down = format_named("f32");
        spec.formats.down_grouping = {};
        DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
        format::Encoded& up = *layer.matrices[0];
        const unsigned top = (1u << format::integer_bits(up.matrix)) - 1;
        for (int r = 0; r < 16; ++r) {
          for (int c = 0; c < 288; ++c) set_code(up, r, c, extreme == 1 && c % 2 == 1 ? 0 : r < 8 ? top : 0);
          for (std::int64_t g = 0; g < format::groups_of_row(up.matrix); ++g)
            set_zero(up, r, g, extreme == 2 ? top / 2 : r < 8 ? 0 : top);
        }
        // Full digits of one sign: 127 (1 + 2^8 + 2^16) and its negative, alone and together.
        for (int tokens : {1, 3}) {
          DrawnCall call = retype(spec, draw_call(spec, tokens, Numbers::exact, 11), DType::f32);
          for (int t = 0; t < tokens; ++t)
            for (int c = 0; c < 288; ++c)
              call.set(spec, t, c,
                       (t == 1 ? -1.0f : 1.0f) * 127 * (1 + 256 + 65536) * (t == 2 && c > 40 ? -1 : 1));
          expect_close(layer, call);
          expect_invariant(layer, call);
        }
      }
}

TEST_P(CpuIntegers, NormalNumbersAreWithinRounding) {
  for (Format format : integer_formats())
    for (const Grouping& grouping : groupings(format, {0, 16, 20, 32, 64})) {
      const ExpertsSpec spec = grouped(plain_spec(format, 144, 64), grouping);
      const DrawnLayer layer = draw_layer(spec, Numbers::normal, 7);
      for (int tokens : {1, 9}) expect_close(layer, draw_call(spec, tokens, Numbers::normal, 11));
    }
}

/// One scale for 128 columns leaves some rows of 2-bit weights with one or two that are not zero, which see
/// the smallest of their inputs alone.
TEST_P(CpuIntegers, RowsOfNearlyAllZerosAreWithinRounding) {
  for (const char* name : {"int2", "int3"})
    for (const Grouping& grouping : {Grouping{}, Grouping{256, false, true}, Grouping{32, true, false}})
      for (std::uint64_t seed : {1, 7, 16}) {
        const ExpertsSpec spec = grouped(plain_spec(format_named(name), 288, 128), grouping);
        expect_close(draw_layer(spec, Numbers::normal, seed), draw_call(spec, 9, Numbers::normal, seed + 4));
      }
}

/// Rows that have no digits take the float32 kernel.
TEST_P(CpuIntegers, OutliersAreWithinRounding) {
  for (Format format : integer_formats())
    for (const Grouping& grouping : groupings(format, {0, 32, 16})) {
      const ExpertsSpec spec = lone(grouped(plain_spec(format, 256, 64), grouping));
      const DrawnLayer layer = draw_layer(spec, Numbers::normal, 7);
      for (const float outlier : {30.0f, 1000.0f, 1e6f})
        for (const int tokens : {1, 5}) {
          DrawnCall call = retype(spec, draw_call(spec, tokens, Numbers::normal, 11), DType::f32);
          call.set(spec, tokens - 1, 40, outlier * 1.2345678f);
          expect_close(layer, call);
          if (tokens == 5 && outlier == 1e6f) expect_invariant(layer, call);
        }
    }
}

/// A minimum and a scaled code may be far larger than the weight that is left of them, and an outlier meets
/// it.
TEST_P(CpuIntegers, BlocksWithOutliersAreWithinRounding) {
  for (const char* name : {"q4_0", "q8_0", "q4_k", "q5_k", "q6_k"}) {
    const ExpertsSpec spec = lone(plain_spec(format_named(name), 512, 32));
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 7);
    for (const float outlier : {1.0f, 30.0f, 1000.0f, 1e6f})
      for (const int tokens : {1, 3}) {
        DrawnCall call = retype(spec, draw_call(spec, tokens, Numbers::normal, 11), DType::f32);
        call.set(spec, tokens - 1, 40, outlier * 1.2345678f);
        expect_close(layer, call);
        if (tokens == 3 && outlier != 1000.0f) expect_invariant(layer, call);
      }
  }
}

TEST_P(CpuIntegers, EveryTypeOfScales) {
  for (const char* name : {"int3", "int4", "int8"})
    for (int columns : {0, 16, 32}) {
      const ExpertsSpec spec = grouped(full_spec(format_named(name), 96, 48), {columns, true, false});
      for (DType dtype : {DType::f16, DType::bf16, DType::f32}) {
        DrawnLayer layer = draw_layer(spec, Numbers::normal, 7);
        retype_scales(layer, dtype);
        expect_close(layer, draw_call(spec, 5, Numbers::normal, 11));
        layer = draw_layer(spec, Numbers::exact, 7);
        retype_scales(layer, dtype);
        expect_exact(layer, draw_call(spec, 5, Numbers::exact, 11));
      }
    }
}

/// One matrix of another type than its like in other experts, or than its neighbour.
TEST_P(CpuIntegers, MixedTypesOfScales) {
  const ExpertsSpec spec = grouped(full_spec(format_named("int4"), 96, 48), {.columns = 32});
  for (std::size_t index = 0; index < 6; ++index)
    for (DType dtype : {DType::f16, DType::f32}) {
      DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
      retype_scales(layer, index, dtype);
      for (int tokens : {1, 5}) expect_exact(layer, draw_call(spec, tokens, Numbers::exact, 11));
      EXPECT_GE(pack(subject(), layer, *team_)->bytes(), subject().packed_bytes(spec));
    }
}

/// Nothing makes sure that an order of columns has groups of the size it declares.
TEST_P(CpuIntegers, OrdersWithGroupsOfAnySize) {
  for (const char* name : {"int3", "int4", "int8"})
    for (int columns : {20, 32, 64})
      for (std::size_t count : {std::size_t{1}, std::size_t{12}}) {
        const ExpertsSpec spec = grouped(full_spec(format_named(name), 104, 72), {columns, false, true});
        Draw draw(3);
        DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
        for (std::size_t i = 0; i < count; ++i) deal_at_random(layer, i, draw);
        for (int tokens : {1, 7}) expect_exact(layer, draw_call(spec, tokens, Numbers::exact, 11));
        expect_invariant(layer, draw_call(spec, 4, Numbers::normal, 11));
      }
}

TEST_P(CpuIntegers, MixedFormatsAndGroupings) {
  ExpertsSpec spec = full_spec(format_named("int4"), 96, 72);
  MatrixFormats& formats = spec.formats;
  const auto check = [&] {
    const DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
    for (int tokens : {1, 6}) expect_exact(layer, draw_call(spec, tokens, Numbers::exact, 11));
    expect_invariant(draw_layer(spec, Numbers::normal, 7), draw_call(spec, 5, Numbers::normal, 11));
  };
  formats.gate_grouping = {32, true, true};
  formats.up_grouping = {16, true, false};
  formats.down_grouping = {64, false, true};
  check();
  formats.gate_grouping = {32, true, false};
  formats.up_grouping = {32, true, true};
  check();
  // Of one row of inputs gate reads words and up bytes, where there is no VNNI and an expert has several
  // tokens.
  formats.gate = format_named("int8");
  formats.up_grouping = {32, true, false};
  check();
  formats.gate = format_named("int4");
  formats.up = format_named("int8");
  check();
  formats.up = format_named("int4");
  formats.up_grouping = {32, true, true};
  formats.gate = format_named("mxfp4");
  formats.gate_grouping = {};
  check();
  formats.up = format_named("bf16");
  formats.up_grouping = {};
  formats.gate = format_named("int3");
  formats.gate_grouping = {32, false, true};
  check();
  formats.gate_grouping = {32, false, false};
  check();
  formats.down = format_named("fp8_channel");
  formats.down_grouping = {};
  check();
}

TEST_P(CpuIntegers, BitsDoNotDependOnTheBatchOrTheVector) {
  for (Format format : integer_formats()) {
    ExpertsSpec spec = full_spec(format, 136, 44);
    spec.params.slope = 1.702f;
    for (const Grouping& grouping : groupings(format, {16, 32, 20, 64})) {
      const DrawnLayer layer = draw_layer(grouped(spec, grouping), Numbers::normal, 1);
      expect_invariant(layer, draw_call(layer.spec, 6, Numbers::normal, 2));
    }
  }
}

TEST_P(CpuIntegers, NaNAndInfinityStayInTheirToken) {
  constexpr float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity()};
  for (const Grouping& grouping : {Grouping{16, true, true}, Grouping{64, false, true}})
    for (float value : kSpecial) {
      const ExpertsSpec spec = lone(grouped(plain_spec(format_named("int4"), 96, 64), grouping));
      const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
      DrawnCall call = draw_call(spec, 5, Numbers::normal, 2);
      const std::vector<float> before = run_once(layer, call);
      call.set(spec, 2, 95, value);
      const std::vector<float> after = run_once(layer, call);
      for (std::size_t i = 0; i < after.size(); ++i) {
        if (i / spec.hidden == 2)
          EXPECT_TRUE(std::isnan(after[i])) << i;
        else
          EXPECT_EQ(after[i], before[i]) << i;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(All, CpuIntegers, ::testing::ValuesIn(kSubjects), subject_name);

}  // namespace
}  // namespace sluice::testing
