// SPDX-License-Identifier: Apache-2.0
// Tiles (multiply_amx.h): right and batch invariant where they are always taken, and which kernels an expert
// gets where it depends on how many tokens it has. On arrays everywhere (portable_tiles.cpp), with the
// instructions where they are.
#include <cstring>

#include "gtest/gtest.h"
#include "testing/closeness.h"
#include "tests/cpu/portable.h"
#include "tests/cpu/subject.h"

namespace sluice::testing {
namespace {

/// A backend that takes tiles for many tokens, and those that it shares its kernels with.
struct Trio {
  const char *name, *few, *tiles;
};

class CpuTiles : public ::testing::TestWithParam<Trio> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(backend_named(GetParam().name));
    if (!reason.empty()) GTEST_SKIP() << GetParam().name << ": " << reason;
  }

  std::vector<float> run_on(const char* name, const DrawnLayer& layer, const DrawnCall& call) const {
    return run(*pack(backend_named(name), layer, *team_), call, *team_);
  }

  std::unique_ptr<Executor> team_ = make_thread_team(2);
};

/// Those that tiles multiply.
std::vector<ExpertsSpec> tiled_specs(int hidden, int intermediate) {
  std::vector<ExpertsSpec> specs;
  for (const char* name : {"bf16", "mxfp4", "nvfp4", "mxfp8", "fp8_block128", "fp8_channel"})
    specs.push_back(full_spec(format_named(name), hidden, intermediate));
  for (const bool zeros : {false, true})
    specs.push_back(grouped(full_spec(format_named("int4"), hidden, intermediate),
                            {.columns = 64, .zero_points = zeros}));
  for (ExpertsSpec& spec : specs) spec.params.slope = 1.702f;
  return specs;
}

/// One expert, which has all tokens of a call.
ExpertsSpec lone(ExpertsSpec spec) {
  spec.experts = spec.local_experts = spec.top_k = 1;
  return spec;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string describe(const ExpertsSpec& spec, int tokens) {
  return storage_text(spec.formats) + ", " + std::to_string(tokens) + " tokens";
}

TEST_P(CpuTiles, ExactNumbersAreExact) {
  for (const char* name : {"bf16", "mxfp4", "nvfp4", "mxfp8", "fp8_block128", "fp8_channel", "int4"}) {
    const ExpertsSpec spec = full_spec(format_named(name), 296, 72);
    const DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
    for (const int tokens : {1, 23}) {
      const DrawnCall call = draw_call(spec, tokens, Numbers::exact, 11);
      const std::vector<float> got = run_on(GetParam().tiles, layer, call);
      const std::vector<double> want = define(layer, call).out;
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(got[i], want[i]) << describe(spec, tokens) << ", element " << i;
    }
  }
}

TEST_P(CpuTiles, RealNumbersAreClose) {
  for (const ExpertsSpec& spec : tiled_specs(296, 72)) {
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 7);
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const DrawnCall call = retype(spec, draw_call(spec, 9, Numbers::normal, 11), dtype);
      const std::vector<float> got = run_on(GetParam().tiles, layer, call);
      const Wanted wanted = define(layer, call);
      const Closeness result =
          closeness({.got = got, .want = wanted.out, .magnitude = wanted.magnitude, .width = spec.hidden});
      EXPECT_TRUE(result.ok()) << describe(spec, 9) << ": " << result.str();
    }
  }
}

TEST_P(CpuTiles, GiveATokenTheSameBitsInAnyBatch) {
  for (const ExpertsSpec& four : tiled_specs(168, 40)) {
    const ExpertsSpec spec = lone(four);
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
    const DrawnCall call = draw_call(spec, 37, Numbers::normal, 2);
    const std::vector<float> together = run_on(GetParam().tiles, layer, call);
    for (const int t : {0, 18, 36}) {
      const std::vector<float> alone = run_on(GetParam().tiles, layer, one_token(spec, call, t));
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + t * spec.hidden, alone.size() * sizeof(float)), 0)
          << describe(spec, 37) << ", token " << t;
    }
  }
}

TEST_P(CpuTiles, SumInTheOrderOfTheArrays) {
  if (std::string_view(GetParam().tiles) == "portable.amx_tiles") GTEST_SKIP() << "these are the arrays";
  for (const ExpertsSpec& spec : tiled_specs(296, 72)) {
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 7);
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const DrawnCall call = retype(spec, draw_call(spec, 9, Numbers::normal, 11), dtype);
      EXPECT_TRUE(same_bits(run_on(GetParam().tiles, layer, call), run_on("portable.amx_tiles", layer, call)))
          << describe(spec, 9);
    }
  }
}

/// Up to some number of tokens the one, from there on the other.
TEST_P(CpuTiles, AreForExpertsOfManyTokens) {
  for (const ExpertsSpec& spec : tiled_specs(168, 40)) {
    const DrawnLayer layer = draw_layer(lone(spec), Numbers::normal, 1);
    int from = 0;
    for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 17}) {
      const DrawnCall call = draw_call(lone(spec), tokens, Numbers::normal, 2);
      const std::vector<float> few = run_on(GetParam().few, layer, call);
      const std::vector<float> tiles = run_on(GetParam().tiles, layer, call);
      ASSERT_FALSE(same_bits(few, tiles)) << describe(spec, tokens) << " tell nothing";
      const std::vector<float> got = run_on(GetParam().name, layer, call);
      if (from == 0 && same_bits(got, tiles)) from = tokens;
      EXPECT_TRUE(same_bits(got, from == 0 ? few : tiles)) << describe(spec, tokens);
    }
    EXPECT_GT(from, 1) << describe(spec, 1);
    if (std::string_view(GetParam().name) == "portable.amx") {
      EXPECT_EQ(from, kPortableTilesFrom) << describe(spec, from);
    }
  }
}

/// In one call, an expert with many tokens and one with a single token.
TEST_P(CpuTiles, AreChosenForEachExpertByItself) {
  for (ExpertsSpec spec : tiled_specs(168, 40)) {
    spec.top_k = 1;
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
    DrawnCall call = draw_call(spec, 21, Numbers::normal, 2);
    for (std::int32_t& id : call.ids) id = 2;
    call.ids[13] = 1;
    const std::vector<float> few = run_on(GetParam().few, layer, call);
    const std::vector<float> tiles = run_on(GetParam().tiles, layer, call);
    const std::vector<float> got = run_on(GetParam().name, layer, call);
    for (int t = 0; t < 21; ++t) {
      const std::size_t at = static_cast<std::size_t>(t) * static_cast<std::size_t>(spec.hidden);
      const float* wanted = (t == 13 ? few : tiles).data() + at;
      EXPECT_EQ(std::memcmp(got.data() + at, wanted, sizeof(float) * spec.hidden), 0)
          << describe(spec, 21) << ", token " << t;
    }
  }
}

TEST_P(CpuTiles, LeaveOtherFormatsAlone) {
  for (const char* name : {"f32", "f16", "int3", "int8"}) {
    const ExpertsSpec spec = lone(full_spec(format_named(name), 96, 40));
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
    for (const int tokens : {1, 17}) {
      const DrawnCall call = draw_call(spec, tokens, Numbers::normal, 2);
      const std::vector<float> few = run_on(GetParam().few, layer, call);
      EXPECT_TRUE(same_bits(run_on(GetParam().name, layer, call), few)) << describe(spec, tokens);
      EXPECT_TRUE(same_bits(run_on(GetParam().tiles, layer, call), few)) << describe(spec, tokens);
    }
  }
}

/// "cpu_amx" as part of a test's name.
std::string trio_name(const ::testing::TestParamInfo<Trio>& info) {
  std::string name = info.param.name;
  return name.replace(name.find('.'), 1, "_");
}

INSTANTIATE_TEST_SUITE_P(All, CpuTiles,
                         ::testing::Values(Trio{"cpu.amx", "cpu.avx512", "cpu.amx_tiles"},
                                           Trio{"portable.amx", "portable.16", "portable.amx_tiles"}),
                         trio_name);

}  // namespace
}  // namespace sluice::testing
