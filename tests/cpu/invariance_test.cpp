// SPDX-License-Identifier: Apache-2.0
// The same bits, whatever a token shares its call with, whoever runs it, and on vectors of any width.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/cpu/subject.h"

namespace sluice::testing {
namespace {

/// Runs tasks from the last to the first, changing workers all the time.
class Backwards final : public Executor {
 public:
  int workers() const override { return 5; }
  void parallel_for(int tasks, TaskBody body) override {
    for (int task = tasks; task-- > 0;) body.call(body.context, task, task % 5);
  }
};

bool same_bits(const std::vector<float>& a, const float* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

/// silu with biases and a limit on normal numbers: every rounding counts.
ExpertsSpec rounding_spec(Format format) {
  ExpertsSpec spec = full_spec(format, 200, 76);
  spec.params.slope = 1.702f;
  return spec;
}

class CpuInvariance : public Subject {};

/// cpu.amx takes other kernels for experts of few tokens than for those of many (tiles_test.cpp).
bool is_batch_invariant(const Backend& backend) { return backend.name != "cpu.amx"; }

TEST_P(CpuInvariance, OfTheBatch) {
  if (!is_batch_invariant(subject())) GTEST_SKIP() << "bits depend on how many tokens an expert has";
  for (Format format : formats()) {
    const ExpertsSpec spec = rounding_spec(format);
    const auto packed = pack(subject(), draw_layer(spec, Numbers::normal, 1), *team_);
    for (int tokens : {2, 3, 7, 27}) {
      // Blocks of 256 columns make the layer four times as large.
      if (geometry(format).block_cols > 32 && tokens > 7 && !subject().name.starts_with("cpu.")) continue;
      const DrawnCall call = draw_call(spec, tokens, Numbers::normal, 2);
      const std::vector<float> together = run(*packed, call, *team_);
      for (int t = 0; t < tokens; ++t)
        ASSERT_TRUE(
            same_bits(run(*packed, one_token(spec, call, t), *team_), together.data() + t * spec.hidden))
            << format.str() << ", token " << t << " of " << tokens;
    }
  }
}

TEST_P(CpuInvariance, OfANeighbourThatIsNotFinite) {
  // A NaN has no digits (digits.h): its token takes another kernel, and only its token.
  if (!is_batch_invariant(subject())) GTEST_SKIP() << "bits depend on how many tokens an expert has";
  for (const char* name : {"mxfp4", "nvfp4", "fp8_block128"}) {
    ExpertsSpec spec = rounding_spec(format_named(name));
    spec.experts = spec.local_experts = spec.top_k = 1;  // all tokens are in one tile
    const auto packed = pack(subject(), draw_layer(spec, Numbers::normal, 1), *team_);
    DrawnCall call = draw_call(spec, 5, Numbers::normal, 2);
    call.set(spec, 2, 7, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> together = run(*packed, call, *team_);
    for (int t : {0, 1, 3, 4})
      EXPECT_TRUE(
          same_bits(run(*packed, one_token(spec, call, t), *team_), together.data() + t * spec.hidden))
          << name << ", token " << t;
    EXPECT_TRUE(std::isnan(together[2 * spec.hidden]));
  }
}

TEST_P(CpuInvariance, OfTheExecutor) {
  for (Format format : formats()) {
    const ExpertsSpec spec = rounding_spec(format);
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
    const DrawnCall call = draw_call(spec, 11, Numbers::normal, 2);
    Backwards backwards;
    const auto team = make_thread_team(3);
    const std::vector<float> wanted = run_once(layer, call);
    EXPECT_TRUE(same_bits(run(*pack(subject(), layer, backwards), call, backwards), wanted.data()))
        << format.str();
    EXPECT_TRUE(same_bits(run(*pack(subject(), layer, *team), call, *team), wanted.data())) << format.str();
  }
}

TEST_P(CpuInvariance, OfTheVectorWidth) {
  if (subject().name == "portable.8") GTEST_SKIP() << "it is what the others are compared with";
  if (subject().name.starts_with("cpu.amx")) GTEST_SKIP() << "tiles have an order of sums of their own";
  // Rows of bf16 have an order of sums of their own there; all others are as everywhere.
  const bool has_bf16_kernels = subject().name == "cpu.avx512_bf16";
  for (Format format : formats()) {
    const ExpertsSpec spec = rounding_spec(format);
    const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
    for (int tokens : {1, 2, 7, 20}) {
      DrawnCall call = draw_call(spec, tokens, Numbers::normal, 2);
      if (has_bf16_kernels) {
        call = retype(spec, call, DType::f32);
        for (int t = 0; t < tokens; ++t) call.set(spec, t, t, 0.1f);
      }
      const auto portable = run(*pack(backend_named("portable.8"), layer, *team_), call, *team_);
      EXPECT_TRUE(same_bits(run_once(layer, call), portable.data()))
          << format.str() << ", " << tokens << " tokens";
    }
  }
}

TEST_P(CpuInvariance, OfCallersAtTheSameTime) {
  const ExpertsSpec spec = rounding_spec(format_named("mxfp4"));
  const auto packed = pack(subject(), draw_layer(spec, Numbers::normal, 1), *team_);
  const DrawnCall call = draw_call(spec, 6, Numbers::normal, 2);
  const std::vector<float> wanted = run(*packed, call, *team_);
  const auto callers = make_thread_team(3);
  std::vector<int> same(12);
  parallel_for(*callers, 12,
               [&](int task, int) { same[task] = same_bits(run(*packed, call, *team_), wanted.data()); });
  EXPECT_EQ(same, std::vector<int>(12, 1));
}

INSTANTIATE_TEST_SUITE_P(All, CpuInvariance, ::testing::ValuesIn(kSubjects), subject_name);

}  // namespace
}  // namespace sluice::testing
