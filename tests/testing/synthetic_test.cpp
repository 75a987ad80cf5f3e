// SPDX-License-Identifier: Apache-2.0
#include "testing/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "format/formats.h"
#include "format/scales.h"
#include "sluice/error.h"

namespace sluice::testing {
namespace {

Format named(std::string_view name) { return Format::parse(name).value(); }

LayerSpec small_spec(std::string_view format) {
  LayerSpec spec = public_shape("gpt-oss-20b", named(format));
  spec.routed.hidden = 320;
  spec.routed.intermediate = 192;
  spec.routed.experts = spec.routed.local_experts = spec.router.experts = 5;
  return spec;
}

TEST(PublicShapes, AreTheModels) {
  for (const std::string_view name : public_shapes()) {
    const LayerSpec spec = public_shape(name, named("mxfp4"));
    EXPECT_NO_THROW(validate(spec)) << name;
    EXPECT_EQ(spec.router.top_k, spec.routed.top_k) << name;
  }
  const LayerSpec gpt_oss = public_shape("gpt-oss-120b", named("mxfp4"));
  EXPECT_EQ(gpt_oss.routed.experts, 128);
  EXPECT_EQ(gpt_oss.routed.params, (ActivationParams{.limit = 7.0f, .slope = 1.702f, .shift = 1.0f}));
  EXPECT_TRUE(gpt_oss.routed.gate_up_bias && gpt_oss.routed.down_bias);
  EXPECT_EQ(experts_bytes(gpt_oss.routed, 128) / 1000000, 1692);  // models.md: 60.9 GB in 36 layers
  const LayerSpec v4 = public_shape("deepseek-v4-flash", named("nvfp4"));
  EXPECT_EQ(v4.routed.params, ActivationParams{.limit = 10.0f});
  EXPECT_EQ(experts_bytes(v4.routed, 256) / 1000000, 3623);
}

TEST(PublicShapes, AnUnknownNameListsTheKnownOnes) {
  try {
    public_shape("gpt-5", named("mxfp4"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    for (const std::string_view name : public_shapes())
      EXPECT_NE(error.info().todo.find(name), std::string::npos) << name;
  }
}

void expect_numbers(const WeightMatrix& matrix) {
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  double squares = 0;
  std::set<float> different;
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    decode_row(matrix, r, row.data());
    for (const float value : row) {
      ASSERT_TRUE(std::isfinite(value)) << matrix.format.str();
      squares += double{value} * value;
    }
    if (r < 4) different.insert(row.begin(), row.end());
  }
  const double deviation = std::sqrt(squares / static_cast<double>(matrix.rows * matrix.cols));
  EXPECT_GT(deviation, 0.003) << matrix.format.str();
  EXPECT_LT(deviation, 0.1) << matrix.format.str();
  EXPECT_GT(different.size(), 10u) << matrix.format.str();
}

TEST(SyntheticWeights, AreNumbersOfModestSizeInEveryFormat) {
  const auto team = make_thread_team(2);
  for (const std::string_view format : Format::all()) {
    if (geometry(named(format)).block_cols == 256) continue;  // the shape has no such multiples
    const LayerSpec spec = small_spec(format);
    const LayerWeights weights = synthetic_weights(spec, 1, *team);
    EXPECT_NO_THROW(validate(spec, weights)) << format;
    for (const ExpertWeights& expert : weights.routed) {
      expect_numbers(*expert.gate);
      expect_numbers(expert.up);
      expect_numbers(expert.down);
      for (std::int64_t i = 0; i < expert.down_bias.size; ++i)
        ASSERT_TRUE(std::isfinite(format::read_number(expert.down_bias.dtype,
                                                      expert.down_bias.data + i * expert.down_bias.stride)));
    }
  }
}

TEST(SyntheticWeights, DoNotDependOnTheWorkersAndDifferByExpert) {
  const LayerSpec spec = small_spec("mxfp4");
  const LayerWeights one = synthetic_weights(spec, 3, *make_thread_team(1));
  const LayerWeights three = synthetic_weights(spec, 3, *make_thread_team(3));
  std::vector<float> a(320), b(320), other(320);
  for (std::size_t e = 0; e < 5; ++e) {
    decode_row(one.routed[e].up, 17, a.data());
    decode_row(three.routed[e].up, 17, b.data());
    decode_row(one.routed[(e + 1) % 5].up, 17, other.data());
    EXPECT_EQ(a, b);
    EXPECT_NE(a, other);
  }
}

TEST(RandomRouting, GoesToDifferentExpertsAllEquallyLikely) {
  ExpertsSpec spec = small_spec("bf16").routed;
  spec.experts = 16;
  spec.top_k = 4;
  RandomRouting draw(spec, 500, 9);
  std::vector<int> hits(16);
  for (int round = 0; round < 8; ++round) {
    const Routing routing = draw.next();
    EXPECT_EQ(draw.distinct(), 16);
    for (int t = 0; t < 500; ++t) {
      const std::set<std::int32_t> ids(routing.ids + 4 * t, routing.ids + 4 * t + 4);
      ASSERT_EQ(ids.size(), 4u);
      for (const std::int32_t id : ids) ++hits.at(static_cast<std::size_t>(id));
      EXPECT_FLOAT_EQ(routing.weights[4 * t], 0.25f);
    }
  }
  for (const int count : hits) EXPECT_NEAR(count, 1000, 150);  // five standard deviations of 29
}

TEST(RandomRouting, EveryDrawIsAnother) {
  const ExpertsSpec spec = public_shape("gpt-oss-120b", named("mxfp4")).routed;
  RandomRouting draw(spec, 1, 1);
  const Routing first = draw.next();
  const std::vector<std::int32_t> before(first.ids, first.ids + 4);
  const Routing second = draw.next();
  EXPECT_NE(before, std::vector<std::int32_t>(second.ids, second.ids + 4));
  EXPECT_EQ(draw.distinct(), 4);
}

TEST(SyntheticHidden, IsOfUnitVariance) {
  const HiddenStates hidden = synthetic_hidden(7, 300, 2);
  EXPECT_EQ(hidden.view.rows, 7);
  EXPECT_EQ(hidden.view.row_stride, 600);
  double squares = 0;
  for (int i = 0; i < 2100; ++i)
    squares += std::pow(format::read_number(DType::bf16, hidden.view.data + 2 * i), 2);
  EXPECT_NEAR(squares / 2100, 1.0, 0.2);
}

}  // namespace
}  // namespace sluice::testing
