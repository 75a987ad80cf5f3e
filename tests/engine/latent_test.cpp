// SPDX-License-Identifier: Apache-2.0
// The projections around latent experts: what is refused, which output is what, ranks and slices. That every
// backend computes them is the conformance tests' business.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/products.h"
#include "engine/router.h"
#include "format/geometry.h"
#include "format/scales.h"
#include "oracle/oracle.h"
#include "sluice/slice.h"
#include "testing/closeness.h"
#include "testing/draw.h"
#include "testing/reference_run.h"
#include "testing/usable_backends.h"
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using small::expect_error;
using testing::draw_call;
using testing::draw_weights;
using testing::Numbers;

constexpr int kTokens = 7, kHidden = 160, kLatent = 96;

/// All outputs of a call.
struct Outputs {
  std::vector<float> experts = std::vector<float>(kTokens * kHidden, -99.0f), shared = experts,
                     block = experts, latent = std::vector<float>(kTokens * kLatent, -99.0f);
};

class LatentTest : public ::testing::Test {
 protected:
  LatentTest() : LatentTest(small::latent_spec()) {}
  explicit LatentTest(const LayerSpec& spec)
      : spec_(spec),
        weights_(draw_weights(spec_, Numbers::noisy, 1)),
        drawn_(draw_call(spec_, Numbers::noisy, {.tokens = kTokens}, 2)) {}

  Layer layer(LayerOptions options = {}) const {
    return Layer(small::plan_for(spec_), weights_, std::move(options));
  }

  /// With routing as drawn.
  LayerCall call(std::span<std::byte> workspace) const {
    return {.hidden = drawn_.hidden, .routing = drawn_.routing(3), .workspace = workspace};
  }

  testing::ReferenceResult definition() const {
    return testing::reference_run(
        {.spec = spec_, .weights = weights_, .hidden = drawn_.hidden, .routing = drawn_.routing(3)});
  }

  static void expect_close(const std::vector<float>& got, const std::vector<double>& want,
                           const std::vector<double>& magnitude, int width) {
    const auto close = testing::closeness({.got = got, .want = want, .magnitude = magnitude, .width = width});
    EXPECT_TRUE(close.ok()) << close.str();
  }

  const LayerSpec spec_;
  const LayerWeights weights_;
  const testing::DrawnCall drawn_;
};

TEST_F(LatentTest, OutputsAreWhatTheDefinitionSays) {
  const Layer subject = layer();
  std::vector<std::byte> workspace(subject.workspace_bytes(kTokens));
  Outputs out;
  LayerCall all = call(workspace);
  all.experts_out = out.experts.data();
  all.shared_out = out.shared.data();
  all.block_out = out.block.data();
  all.latent_out = out.latent.data();
  subject.run(all);
  const testing::ReferenceResult want = definition();
  expect_close(out.latent, want.latent_out, want.latent_magnitude, kLatent);
  expect_close(out.experts, want.experts_out, want.experts_magnitude, kHidden);
  expect_close(out.block, want.block_out, want.block_magnitude, kHidden);
  for (std::size_t i = 0; i < out.block.size(); ++i)
    ASSERT_EQ(out.block[i], out.experts[i] + out.shared[i]) << i;

  // A call in parts gives the same bits.
  Outputs in_parts;
  std::vector<std::byte> less(subject.workspace_bytes(2));
  LayerCall parts = call(less);
  parts.experts_out = in_parts.experts.data();
  parts.shared_out = in_parts.shared.data();
  parts.block_out = in_parts.block.data();
  parts.latent_out = in_parts.latent.data();
  subject.run(parts);
  EXPECT_EQ(in_parts.experts, out.experts);
  EXPECT_EQ(in_parts.shared, out.shared);
  EXPECT_EQ(in_parts.block, out.block);
  EXPECT_EQ(in_parts.latent, out.latent);

  // Each alone gives the same bits.
  Outputs alone;
  const auto only = [&](float* LayerCall::*member, std::vector<float>& to) {
    LayerCall one = call(workspace);
    one.*member = to.data();
    subject.run(one);
  };
  only(&LayerCall::experts_out, alone.experts);
  only(&LayerCall::shared_out, alone.shared);
  only(&LayerCall::block_out, alone.block);
  only(&LayerCall::latent_out, alone.latent);
  EXPECT_EQ(alone.experts, out.experts);
  EXPECT_EQ(alone.shared, out.shared);
  EXPECT_EQ(alone.block, out.block);
  EXPECT_EQ(alone.latent, out.latent);
}

/// Without the norm, with another epsilon, or with one weight of the norm for all, the test above fails, even
/// where an output may be off by roundings of bf16.
TEST_F(LatentTest, TheDefinitionSeesTheNorm) {
  LayerSpec plain = spec_, other = spec_;
  plain.latent->norm_epsilon.reset();
  other.latent->norm_epsilon = 50.0f;
  LayerWeights bare = weights_;
  bare.latent->norm = {};
  const testing::ReferenceResult want = definition();
  const auto apart = [&](const LayerSpec& spec, const LayerWeights& weights) {
    const auto got =
        testing::reference_run(
            {.spec = spec, .weights = weights, .hidden = drawn_.hidden, .routing = drawn_.routing(3)})
            .experts_out;
    const std::vector<float> floats(got.begin(), got.end());
    return !testing::closeness({.got = floats,
                                .want = want.experts_out,
                                .magnitude = want.experts_magnitude,
                                .width = kHidden,
                                .unit = testing::kBf16Unit})
                .ok();
  };
  EXPECT_TRUE(apart(plain, bare));
  EXPECT_TRUE(apart(other, weights_));
  LayerWeights shifted = weights_;
  shifted.latent->norm.data += 2;
  shifted.latent->norm.stride = 0;
  EXPECT_TRUE(apart(spec_, shifted));
}

TEST_F(LatentTest, TheProjectionsAloneGiveTheBitsOfRun) {
  const Layer subject = layer();
  std::vector<std::byte> workspace(subject.workspace_bytes(kTokens));
  Outputs whole;
  LayerCall flat = call(workspace);
  flat.experts_out = whole.experts.data();
  flat.latent_out = whole.latent.data();
  subject.run(flat);
  for (const int at_once : {1, 2, kTokens}) {
    std::vector<std::byte> less(subject.workspace_bytes(at_once));
    std::vector<float> back(whole.experts.size(), -99.0f);
    subject.from_latent(whole.latent.data(), kTokens, back.data(), less);
    EXPECT_EQ(back, whole.experts) << at_once;
  }
  std::vector<std::byte> too_small(8);
  std::vector<float> rows(static_cast<std::size_t>(kTokens * kLatent));
  expect_error("workspace_too_small", [&] { subject.to_latent(drawn_.hidden, rows.data(), too_small); });
  expect_error("workspace_too_small",
               [&] { subject.from_latent(rows.data(), kTokens, whole.experts.data(), too_small); });
  RowsView narrow = drawn_.hidden;
  narrow.width = kLatent;
  expect_error("bad_hidden", [&] { subject.to_latent(narrow, rows.data(), workspace); });
  expect_error("bad_rows", [&] { subject.to_latent(drawn_.hidden, nullptr, workspace); });
  expect_error("bad_rows", [&] { subject.from_latent(nullptr, 1, whole.experts.data(), workspace); });
  expect_error("bad_rows", [&] { subject.from_latent(rows.data(), 1, nullptr, workspace); });
  expect_error("bad_rows", [&] { subject.from_latent(rows.data(), -1, whole.experts.data(), workspace); });
}

TEST_F(LatentTest, LayersWithoutHaveNone) {
  const LayerSpec spec = small::spec();
  const Layer subject(small::plan_for(spec), draw_weights(spec, Numbers::noisy, 1));
  std::vector<std::byte> workspace(subject.workspace_bytes(1));
  std::vector<float> rows(96);
  const RowsView view{reinterpret_cast<const std::byte*>(rows.data()), DType::f32, 1, 96, 4 * 96};
  expect_error("no_latent", [&] { subject.to_latent(view, rows.data(), workspace); });
  expect_error("no_latent", [&] { subject.from_latent(rows.data(), 1, rows.data(), workspace); });
  expect_error("bad_outputs",
               [&] { subject.run({.hidden = view, .latent_out = rows.data(), .workspace = workspace}); });
  LayerSpec alone = spec;
  alone.shared.reset();
  const Layer without(small::plan_for(alone), draw_weights(alone, Numbers::noisy, 1));
  expect_error("bad_outputs",
               [&] { without.run({.hidden = view, .shared_out = rows.data(), .workspace = workspace}); });
}

TEST_F(LatentTest, SpecsThatMakeNoSense) {
  const auto refused = [&](const char* why, const std::function<void(LayerSpec&)>& change) {
    LayerSpec spec = spec_;
    change(spec);
    try {
      validate(spec);
      ADD_FAILURE() << why << ": accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.info().code, "bad_spec");
      EXPECT_NE(error.info().why.find(why), std::string::npos) << error.info().why;
    }
  };
  EXPECT_NO_THROW(validate(spec_));
  refused("hidden 0", [](LayerSpec& spec) { spec.latent->hidden = 0; });
  refused("epsilon is 0", [](LayerSpec& spec) { spec.latent->norm_epsilon = 0.0f; });
  refused("epsilon is nan",
          [](LayerSpec& spec) { spec.latent->norm_epsilon = std::numeric_limits<float>::quiet_NaN(); });
  refused("hidden 96, the layer has 160", [](LayerSpec& spec) { spec.shared->experts.hidden = 96; });
}

TEST_F(LatentTest, WeightsOfTheWrongSize) {
  const auto refused = [&](const char* place, const std::function<void(LayerWeights&)>& change) {
    LayerWeights weights = weights_;
    change(weights);
    try {
      validate(spec_, weights);
      ADD_FAILURE() << place << ": accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.info().code, "bad_weights");
      EXPECT_EQ(error.info().tensor, place) << error.what();
    }
  };
  EXPECT_NO_THROW(validate(spec_, weights_));
  refused("latent", [](LayerWeights& weights) { weights.latent.reset(); });
  refused("latent.in", [](LayerWeights& weights) { weights.latent->in.rows = 95; });
  refused("latent.in", [](LayerWeights& weights) { weights.latent->in.cols = 96; });
  refused("latent.in", [](LayerWeights& weights) { std::swap(weights.latent->in, weights.latent->out); });
  refused("latent.out", [](LayerWeights& weights) { weights.latent->out.codes = nullptr; });
  refused("latent.out", [](LayerWeights& weights) { weights.latent->out.rows = 161; });
  refused("latent.norm", [](LayerWeights& weights) { weights.latent->norm = {}; });
  refused("latent.norm", [](LayerWeights& weights) { weights.latent->norm.size = 160; });
  refused("router.weight", [](LayerWeights& weights) { weights.router.weight->cols = 96; });
  refused("shared_gate", [](LayerWeights& weights) { weights.shared_gate.size = 96; });
  LayerSpec plain = small::spec();
  LayerWeights with = draw_weights(plain, Numbers::noisy, 1);
  with.latent = weights_.latent;
  EXPECT_THROW(validate(plain, with), Error) << "projections that the spec knows nothing of";
}

/// A part of the experts' sum must not meet the norm.
TEST_F(LatentTest, ANormOfAPartIsRefused) {
  LayerSpec half = spec_;
  half.routed.local_experts = 4;
  LayerWeights here = weights_;
  here.routed.erase(here.routed.begin() + 4, here.routed.end());
  const Layer subject(small::plan_for(half), here, {.expert_map = {0, 1, 2, 3, -1, -1, -1, -1}});
  std::vector<std::byte> workspace(subject.workspace_bytes(kTokens));
  Outputs out;
  LayerCall one = call(workspace);
  one.experts_out = out.experts.data();
  expect_error("latent_part", [&] { subject.run(one); });
  one.experts_out = nullptr;
  one.block_out = out.block.data();
  expect_error("latent_part", [&] { subject.run(one); });
  one.block_out = nullptr;
  one.latent_out = out.latent.data();
  one.shared_out = out.shared.data();
  EXPECT_NO_THROW(subject.run(one));

  half.latent->norm_epsilon.reset();
  here.latent->norm = {};
  const Layer linear(small::plan_for(half), here, {.expert_map = {0, 1, 2, 3, -1, -1, -1, -1}});
  one.experts_out = out.experts.data();
  EXPECT_NO_THROW(linear.run(one)) << "a projection of parts is a part of the projection";
}

/// Tensor parallelism through the norm: parts give their sums, any of them takes the total back.
TEST_F(LatentTest, SlicesMeetBeforeTheNorm) {
  Outputs total;
  std::ranges::fill(total.latent, 0.0f);
  std::ranges::fill(total.shared, 0.0f);
  std::optional<Layer> last;
  for (int rank = 0; rank < 3; ++rank) {
    const LayerSlice mine = slice(spec_, weights_, even_share(spec_, rank, 3));
    ASSERT_TRUE(mine.spec.latent->part);
    last.emplace(small::plan_for(mine.spec), mine.weights);
    std::vector<std::byte> workspace(last->workspace_bytes(kTokens));
    Outputs out;
    LayerCall part = call(workspace);
    part.experts_out = out.experts.data();
    expect_error("latent_part", [&] { last->run(part); });
    part.experts_out = nullptr;
    part.latent_out = out.latent.data();
    part.shared_out = out.shared.data();
    last->run(part);
    for (std::size_t i = 0; i < out.latent.size(); ++i) total.latent[i] += out.latent[i];
    for (std::size_t i = 0; i < out.shared.size(); ++i) total.shared[i] += out.shared[i];
  }
  std::vector<std::byte> workspace(last->workspace_bytes(kTokens));
  last->from_latent(total.latent.data(), kTokens, total.experts.data(), workspace);
  const testing::ReferenceResult want = definition();
  expect_close(total.experts, want.experts_out, want.experts_magnitude, kHidden);
  for (std::size_t i = 0; i < total.block.size(); ++i) total.block[i] = total.experts[i] + total.shared[i];
  expect_close(total.block, want.block_out, want.block_magnitude, kHidden);
  EXPECT_FALSE(slice(spec_, weights_, even_share(spec_, 0, 1)).spec.latent->part) << "the whole is no part";
}

/// Whatever the processor offers, an element has the bits of `dot`.
TEST(Products, HaveTheBitsOfDot) {
  testing::Draw draw(7);
  for (const int width : {1, 15, 16, 17, 31, 32, 100, 1023})
    for (const int count : {1, 3, 4, 5, 8, 11}) {
      const std::vector<float> x = draw.normals(width, 1),
                               rows = draw.normals(std::int64_t{width} * count, 1);
      std::vector<float> got(static_cast<std::size_t>(count)), want;
      for (int r = 0; r < count; ++r) want.push_back(dot(x.data(), rows.data() + r * width, width));
      products_of_this_processor()(x.data(), rows.data(), count, width, got.data());
      EXPECT_EQ(got, want) << width << ", " << count;
    }
}

/// The projections may be in any format.
TEST_F(LatentTest, QuantisedProjections) {
  for (const Format format :
       {Formats::of<format::Fp8Tensor>(), Formats::of<format::Mxfp4>(), Formats::of<format::F16>()}) {
    LayerWeights weights = weights_;
    std::vector<float> values(static_cast<std::size_t>(kLatent * kHidden));
    for (int r = 0; r < kLatent; ++r) decode_row(weights_.latent->in, r, values.data() + r * kHidden);
    const format::Encoded in = encode(format, values.data(), kLatent, kHidden);
    weights.latent->in = in.matrix;
    const Layer subject(small::plan_for(spec_), weights);
    std::vector<std::byte> workspace(subject.workspace_bytes(kTokens));
    Outputs out;
    LayerCall one = call(workspace);
    one.experts_out = out.experts.data();
    subject.run(one);
    const auto want = testing::reference_run(
        {.spec = spec_, .weights = weights, .hidden = drawn_.hidden, .routing = drawn_.routing(3)});
    SCOPED_TRACE(format.str());
    expect_close(out.experts, want.experts_out, want.experts_magnitude, kHidden);
  }
}

/// cuda.mma has not declared it, and neither has a copy of any backend without the word.
TEST_F(LatentTest, WhoDoesNotDeclareItRefusesIt) {
  for (const Backend* backend : backends()) {
    const Request request{.layer = spec_, .device = testing::device_for("reference")};
    Backend lacking = *backend;
    lacking.can.features = lacking.can.features.minus(Features::set<feature::Latent>());
    bool said = false;
    for (const Miss& miss : compare(lacking, request))
      said = said || (miss.trait == "features" && miss.why.find("latent") != std::string::npos);
    EXPECT_TRUE(said) << backend->name;
    EXPECT_EQ(backend->can.features.has(Features::of<feature::Latent>()),
              backend->can.device == DeviceKinds::of<device::Cpu>())
        << backend->name;
  }
}

}  // namespace
}  // namespace sluice
