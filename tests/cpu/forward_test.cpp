// SPDX-License-Identifier: Apache-2.0
// What the CPU backends compute, against the definition: exactly for exact numbers, within rounding
// otherwise.
#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "testing/closeness.h"
#include "tests/cpu/drawn_layer.h"

namespace sluice::testing {
namespace {

/// Every element equal, zeros of either sign.
void expect_exact(const std::vector<float>& got, const std::vector<double>& want, std::string_view what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << ", element " << i;
}

void expect_close(const DrawnLayer& layer, const DrawnCall& call, const std::vector<float>& got,
                  std::string_view what) {
  const Wanted wanted = define(layer, call);
  const Closeness result =
      closeness({.got = got, .want = wanted.out, .magnitude = wanted.magnitude, .width = layer.spec.hidden});
  EXPECT_TRUE(result.ok()) << what << ": " << result.str();
}

std::string describe(const Backend& backend, const ExpertsSpec& spec, int tokens) {
  return std::string(backend.name) + " " + std::string(spec.formats.up.str()) + " " +
         std::to_string(spec.hidden) + "x" + std::to_string(spec.intermediate) + " " +
         std::string(spec.activation.str()) + ", " + std::to_string(tokens) + " tokens";
}

class CpuForward : public ::testing::Test {
 protected:
  /// Runs one layer with calls of several sizes on every backend.
  template <class Expect>
  void check(const ExpertsSpec& spec, Numbers numbers, const std::vector<int>& token_counts, Expect expect) {
    const DrawnLayer layer = draw_layer(spec, numbers, 7);
    for (const Backend* backend : cpu_backends()) {
      const auto packed = pack(*backend, layer, *team_);
      for (int tokens : token_counts) {
        const DrawnCall call = draw_call(spec, tokens, numbers, 11 + tokens);
        expect(layer, call, run(*packed, call, *team_), describe(*backend, spec, tokens));
      }
    }
  }

  void check_exact(const ExpertsSpec& spec, const std::vector<int>& token_counts) {
    check(spec, Numbers::exact, token_counts, [](auto& layer, auto& call, const auto& got, const auto& what) {
      expect_exact(got, define(layer, call).out, what);
    });
  }
  void check_close(const ExpertsSpec& spec, const std::vector<int>& token_counts) {
    check(spec, Numbers::normal, token_counts, expect_close);
  }

  std::unique_ptr<Executor> team_ = make_thread_team(2);
};

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  Formats::everything().each([&](Format format) { formats.push_back(format); });
  return formats;
}

TEST_F(CpuForward, ExactNumbersAreExact) {
  // 2 experts of 4 a token: 30 tokens give an expert 15, more than a tile of any width.
  for (Format format : all_formats()) check_exact(full_spec(format, 160, 96), {1, 2, 3, 7, 30});
}

TEST_F(CpuForward, RaggedShapesAreExact) {
  for (Format format : all_formats()) {
    check_exact(full_spec(format, 35, 17), {1, 5});
    check_exact(full_spec(format, 1, 1), {1, 3});
    check_exact(full_spec(format, 130, 257), {2});
  }
}

TEST_F(CpuForward, NormalNumbersAreWithinRounding) {
  for (Format format : all_formats()) check_close(plain_spec(format, 256, 128), {1, 4, 20});
}

TEST_F(CpuForward, EveryActivation) {
  Activations::everything().each([&](Activation activation) {
    ExpertsSpec spec = plain_spec(format_named("bf16"), 64, 48);
    spec.activation = activation;
    if (!is_gated(activation)) spec.formats.gate.reset();
    check_close(spec, {1, 9});
    if (activation.str() == "silu" || activation.str() == "silu_then_clamp") {
      spec.params.limit = 1.5f;
      check_close(spec, {1, 9});
    }
  });
}

TEST_F(CpuForward, WithoutAGateIsExact) {
  for (const char* format : {"mxfp4", "f32"}) {
    ExpertsSpec spec = plain_spec(format_named(format), 64, 40);
    spec.activation = activation_named("relu2");
    spec.formats.gate.reset();
    spec.gate_up_bias = true;
    check_exact(spec, {1, 6});
  }
}

TEST_F(CpuForward, MixedFormatsAreExact) {
  ExpertsSpec spec = full_spec(format_named("mxfp4"), 96, 70);
  spec.formats.gate = format_named("fp8_block128");
  spec.formats.down = format_named("bf16");
  check_exact(spec, {1, 6});
  spec.formats = {format_named("nvfp4"), format_named("nvfp4"), format_named("fp8_channel")};
  check_exact(spec, {1, 6});
}

TEST_F(CpuForward, WeightOnInput) {
  ExpertsSpec spec = full_spec(format_named("mxfp4"), 64, 48);
  spec.weight_on_input = true;
  check_exact(spec, {1, 6});
}

TEST_F(CpuForward, EveryInputType) {
  const ExpertsSpec spec = full_spec(format_named("nvfp4"), 48, 32);
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  const DrawnCall call = draw_call(spec, 5, Numbers::exact, 2);
  for (const Backend* backend : cpu_backends())
    for (DType dtype : {DType::bf16, DType::f16, DType::f32})
      expect_exact(run(*pack(*backend, layer, *team_), retype(spec, call, dtype), *team_),
                   define(layer, call).out, backend->name);
}

TEST_F(CpuForward, StridedInput) {
  // Rows further apart than they are wide, as a slice of a wider matrix has them.
  const ExpertsSpec spec = full_spec(format_named("bf16"), 48, 32);
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  const DrawnCall call = draw_call(spec, 4, Numbers::exact, 2);
  const DrawnCall apart = spread(spec, call, 200);
  for (const Backend* backend : cpu_backends())
    expect_exact(run(*pack(*backend, layer, *team_), apart, *team_), define(layer, call).out, backend->name);
}

// ---- routing

TEST_F(CpuForward, NoTokens) { check_exact(full_spec(format_named("mxfp4"), 32, 32), {0}); }

TEST_F(CpuForward, IdsThatNameNobody) {
  const ExpertsSpec spec = full_spec(format_named("mxfp4"), 64, 32);
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  DrawnCall call = draw_call(spec, 6, Numbers::exact, 2);
  call.ids = {-1, -1, 0, -1, -1, 3, 4, 2, 1, 1000000, -7, 2};
  for (const Backend* backend : cpu_backends())
    expect_exact(run(*pack(*backend, layer, *team_), call, *team_), define(layer, call).out, backend->name);
}

TEST_F(CpuForward, NobodyIsAskedForAnything) {
  const ExpertsSpec spec = full_spec(format_named("mxfp4"), 64, 32);
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  DrawnCall call = draw_call(spec, 3, Numbers::exact, 2);
  std::fill(call.ids.begin(), call.ids.end(), -1);
  for (const Backend* backend : cpu_backends())
    for (float value : run(*pack(*backend, layer, *team_), call, *team_)) ASSERT_EQ(value, 0.0f);
}

TEST_F(CpuForward, RepeatedIdsCountTwice) {
  const ExpertsSpec spec = full_spec(format_named("nvfp4"), 64, 32);
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  DrawnCall call = draw_call(spec, 5, Numbers::exact, 2);
  std::fill(call.ids.begin(), call.ids.end(), 2);
  for (const Backend* backend : cpu_backends())
    expect_exact(run(*pack(*backend, layer, *team_), call, *team_), define(layer, call).out, backend->name);
}

TEST_F(CpuForward, OneExpertGetsEverything) {
  // 150 slots of one expert: more than a chunk of tokens.
  ExpertsSpec spec = full_spec(format_named("mxfp4"), 64, 32);
  spec.top_k = 1;
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  DrawnCall call = draw_call(spec, 150, Numbers::exact, 2);
  std::fill(call.ids.begin(), call.ids.end(), 3);
  for (const Backend* backend : cpu_backends())
    expect_exact(run(*pack(*backend, layer, *team_), call, *team_), define(layer, call).out, backend->name);
}

TEST_F(CpuForward, ExpertMap) {
  ExpertsSpec spec = full_spec(format_named("fp8_block128"), 64, 32);
  spec.experts = 8;
  spec.local_experts = 3;
  spec.top_k = 4;
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  DrawnCall call = draw_call(spec, 9, Numbers::exact, 2);
  call.expert_map = {-1, 2, -1, -1, 0, -1, 1, -1};
  for (const Backend* backend : cpu_backends())
    expect_exact(run(*pack(*backend, layer, *team_), call, *team_), define(layer, call).out, backend->name);
}

}  // namespace
}  // namespace sluice::testing
