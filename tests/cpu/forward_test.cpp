// SPDX-License-Identifier: Apache-2.0
// What the CPU backends compute, against the definition: exactly for exact numbers, within rounding
// otherwise.
#include <algorithm>

#include "testing/closeness.h"
#include "tests/cpu/subject.h"

namespace sluice::testing {
namespace {

class CpuForward : public Subject {
 protected:
  /// Every element equal, zeros of either sign.
  void expect_exact(const DrawnLayer& layer, const DrawnCall& call) {
    const std::vector<float> got = run_once(layer, call);
    const std::vector<double> want = define(layer, call).out;
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], want[i]) << describe(layer.spec, call.tokens) << ", element " << i;
  }

  void expect_close(const DrawnLayer& layer, const DrawnCall& call) {
    const std::vector<float> got = run_once(layer, call);
    const Wanted wanted = define(layer, call);
    const Closeness result = closeness(
        {.got = got, .want = wanted.out, .magnitude = wanted.magnitude, .width = layer.spec.hidden});
    EXPECT_TRUE(result.ok()) << describe(layer.spec, call.tokens) << ": " << result.str();
  }

  void check_exact(const ExpertsSpec& spec, const std::vector<int>& token_counts) {
    const DrawnLayer layer = draw_layer(spec, Numbers::exact, 7);
    for (int tokens : token_counts) expect_exact(layer, draw_call(spec, tokens, Numbers::exact, 11 + tokens));
  }

  void check_close(const ExpertsSpec& spec, const std::vector<int>& token_counts) {
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 7);
    for (int tokens : token_counts)
      expect_close(layer, draw_call(spec, tokens, Numbers::normal, 11 + tokens));
  }

  static std::string describe(const ExpertsSpec& spec, int tokens) {
    return std::string(spec.formats.up.str()) + " " + std::to_string(spec.hidden) + "x" +
           std::to_string(spec.intermediate) + " " + std::string(spec.activation.str()) + ", " +
           std::to_string(tokens) + " tokens";
  }
};

TEST_P(CpuForward, ExactNumbersAreExact) {
  // 2 experts of 4 a token: 30 tokens give an expert 15, more than a tile of any width.
  for (Format format : formats()) check_exact(full_spec(format, 160, 96), {1, 2, 3, 7, 30});
}

TEST_P(CpuForward, RaggedShapesAreExact) {
  for (Format format : formats()) {
    check_exact(full_spec(format, 35, 17), {1, 5});
    check_exact(full_spec(format, 1, 1), {1, 3});
    check_exact(full_spec(format, 130, 257), {2});
  }
}

TEST_P(CpuForward, NormalNumbersAreWithinRounding) {
  for (Format format : formats()) check_close(plain_spec(format, 256, 128), {1, 4, 20});
}

/// One column far larger than its neighbours, which rows with a zero weight there must not notice.
TEST_P(CpuForward, OutliersAreWithinRounding) {
  for (const char* name : {"mxfp4", "nvfp4"})
    for (const float outlier : {30.0f, 1000.0f, 1e6f})
      for (const int tokens : {1, 5}) {
        ExpertsSpec spec = plain_spec(format_named(name), 256, 128);
        spec.experts = spec.local_experts = spec.top_k = 1;
        DrawnLayer layer = draw_layer(spec, Numbers::normal, 7);
        DrawnCall call = retype(spec, draw_call(spec, tokens, Numbers::normal, 11), DType::f32);
        call.set(spec, tokens - 1, 40, outlier * 1.2345678f);
        expect_close(layer, call);
      }
}

TEST_P(CpuForward, EveryActivation) {
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

TEST_P(CpuForward, WithoutAGateIsExact) {
  for (const char* format : {"mxfp4", "f32"}) {
    ExpertsSpec spec = plain_spec(format_named(format), 64, 40);
    spec.activation = activation_named("relu2");
    spec.formats.gate.reset();
    spec.gate_up_bias = true;
    check_exact(spec, {1, 6});
  }
}

TEST_P(CpuForward, MixedFormatsAreExact) {
  ExpertsSpec spec = full_spec(format_named("mxfp4"), 96, 70);
  spec.formats.gate = format_named("fp8_block128");
  spec.formats.down = format_named("bf16");
  check_exact(spec, {1, 6});
  spec.formats = {format_named("nvfp4"), format_named("nvfp4"), format_named("fp8_channel")};
  check_exact(spec, {1, 6});
}

TEST_P(CpuForward, WeightOnInput) {
  ExpertsSpec spec = full_spec(format_named("mxfp4"), 64, 48);
  spec.weight_on_input = true;
  check_exact(spec, {1, 6});
}

TEST_P(CpuForward, EveryInputType) {
  const ExpertsSpec spec = full_spec(format_named("nvfp4"), 48, 32);
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  const DrawnCall call = draw_call(spec, 5, Numbers::exact, 2);
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) expect_exact(layer, retype(spec, call, dtype));
}

TEST_P(CpuForward, RowsFarApart) {
  // As a slice of a wider matrix has them.
  const ExpertsSpec spec = full_spec(format_named("bf16"), 48, 32);
  const DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
  const DrawnCall call = draw_call(spec, 4, Numbers::exact, 2);
  EXPECT_EQ(run_once(layer, spread(spec, call, 200)), run_once(layer, call));
}

// ---- routing

class CpuRouting : public CpuForward {
 protected:
  static ExpertsSpec small() { return full_spec(format_named("mxfp4"), 64, 32); }
};

TEST_P(CpuRouting, NoTokens) { check_exact(small(), {0}); }

TEST_P(CpuRouting, IdsThatNameNobody) {
  DrawnCall call = draw_call(small(), 6, Numbers::exact, 2);
  call.ids = {-1, -1, 0, -1, -1, 3, 4, 2, 1, 1000000, -7, 2};
  expect_exact(draw_layer(small(), Numbers::exact, 1), call);
}

TEST_P(CpuRouting, NobodyIsAskedForAnything) {
  DrawnCall call = draw_call(small(), 3, Numbers::exact, 2);
  std::fill(call.ids.begin(), call.ids.end(), -1);
  for (float value : run_once(draw_layer(small(), Numbers::exact, 1), call)) ASSERT_EQ(value, 0.0f);
}

TEST_P(CpuRouting, RepeatedIdsCountTwice) {
  DrawnCall call = draw_call(small(), 5, Numbers::exact, 2);
  std::fill(call.ids.begin(), call.ids.end(), 2);
  expect_exact(draw_layer(small(), Numbers::exact, 1), call);
}

TEST_P(CpuRouting, OneExpertGetsEverything) {
  // 150 tokens are more than a chunk.
  ExpertsSpec spec = small();
  spec.top_k = 1;
  DrawnCall call = draw_call(spec, 150, Numbers::exact, 2);
  std::fill(call.ids.begin(), call.ids.end(), 3);
  expect_exact(draw_layer(spec, Numbers::exact, 1), call);
}

TEST_P(CpuRouting, ExpertMap) {
  ExpertsSpec spec = full_spec(format_named("fp8_block128"), 64, 32);
  spec.experts = 8;
  spec.local_experts = 3;
  spec.top_k = 4;
  DrawnCall call = draw_call(spec, 9, Numbers::exact, 2);
  call.expert_map = {-1, 2, -1, -1, 0, -1, 1, -1};
  expect_exact(draw_layer(spec, Numbers::exact, 1), call);
}

INSTANTIATE_TEST_SUITE_P(All, CpuForward, ::testing::ValuesIn(kSubjects), subject_name);
INSTANTIATE_TEST_SUITE_P(All, CpuRouting, ::testing::ValuesIn(kSubjects), subject_name);

}  // namespace
}  // namespace sluice::testing
