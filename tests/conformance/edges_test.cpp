// SPDX-License-Identifier: Apache-2.0
// Shapes and token counts at the ends of what a backend takes.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <span>
#include <vector>

#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"

namespace sluice::conformance {
namespace {

using testing::Numbers;

constexpr int kMostTokens = 140;  // beyond that a range's end is left to the benchmarks

class EdgesTest : public ::testing::TestWithParam<const Backend*> {
 protected:
  const Backend& backend() const { return *GetParam(); }
  Activation activation() const { return members(backend().can.activations).front(); }
  FeatureSet features() const { return applicable(backend().can.features, activation()); }
  /// All that the backend has, in `format`.
  Case everything(Format format, Shape shape = {}) const {
    return make_case(
        format, format, activation(),
        applicable(features(), format).minus(Features::set<feature::MixedFormats, feature::MixedGateUp>()),
        shape);
  }
};

/// The least size a format and a backend both take.
int unit_of(int backend_multiple, Format format) {
  return std::lcm(backend_multiple, conformance::column_unit(format));
}

TEST_P(EdgesTest, OneThreeAndOddMultiples) {
  for (const Format format : members(backend().can.weights)) {
    const int hidden = unit_of(backend().can.hidden_multiple, format);
    const int intermediate = unit_of(backend().can.intermediate_multiple, format);
    for (const auto& [h, i] : {std::pair{1, 1}, {3, 3}, {1, 3}, {3, 1}, {5, 2}, {9, 6}, {2, 17}}) {
      // Blocks of 256 columns: what is large shows nothing more.
      if (std::int64_t{h} * hidden * i * intermediate > 200'000) continue;
      for (const int tokens : {1, 5})
        Problem(everything(format, {h * hidden, i * intermediate}), Numbers::noisy, {.tokens = tokens})
            .check(backend());
    }
  }
}

TEST_P(EdgesTest, RaggedShapes) {
  for (const Format format : members(backend().can.weights))
    for (const Shape shape : {Shape{288, 192}, {160, 96}, {64, 416}})
      if (shape.hidden % backend().can.hidden_multiple == 0 &&
          shape.intermediate % backend().can.intermediate_multiple == 0)
        Problem(everything(format, shape), Numbers::exact, {.tokens = 6}).check(backend());
}

/// Few columns by many rows, and many by few, in both products: kernels that deal out columns to warps have
/// warps without any, kernels that deal out rows have long shares, and rings of weights go around.
TEST_P(EdgesTest, LongAndWideShapes) {
  const auto declared = backend().can.weights;
  const Format mxfp4 = Format::parse("mxfp4").value();
  const Format format = declared.has(mxfp4) ? mxfp4 : members(declared).back();
  for (const Shape shape : {Shape{128, 4096}, {2304, 256}})
    Problem(everything(format, shape), Numbers::noisy, {.tokens = 7}).check(backend());
}

/// Every kernel range's ends and their neighbours.
TEST_P(EdgesTest, TokenCountsAtTheEndsOfKernelRanges) {
  std::set<int> counts{0, 1, 2, 3};
  for (const Kernel& kernel : backend().kernels())
    for (const int end : {kernel.tokens.first, kernel.tokens.last})
      for (const int near : {-1, 0, 1})
        if (end < kMostTokens && end + near >= 0) counts.insert(end + near);
  const Format format = members(backend().can.weights).back();
  for (const int tokens : counts) {
    Problem(everything(format), Numbers::exact, {.tokens = tokens}).check(backend());
    Problem(everything(format), Numbers::noisy, {.tokens = tokens}).check(backend());
  }
}

/// A count that every expert gets a different share of, well inside a range.
TEST_P(EdgesTest, ManyTokens) {
  for (const Format format : members(backend().can.weights))
    Problem(everything(format), Numbers::exact, {.tokens = 67}).check(backend());
}

/// The ids of six experts that get so many tokens each: two neighbouring stretches of experts for a token.
std::vector<std::int32_t> ids_of(const std::vector<int>& counts) {
  std::vector<std::int32_t> experts;
  for (std::size_t e = 0; e < counts.size(); ++e)
    experts.insert(experts.end(), static_cast<std::size_t>(counts[e]), static_cast<std::int32_t>(e));
  const std::size_t tokens = experts.size() / 2;
  std::vector<std::int32_t> ids;
  for (std::size_t t = 0; t < tokens; ++t) {
    ids.push_back(experts[t]);
    ids.push_back(experts[t + tokens]);
  }
  return ids;
}

/// Without what is no matter of how many tokens an expert has.
FeatureSet features_of_sizes(FeatureSet all) {
  return all.minus(Features::set<feature::Lora, feature::WeightOnInput, feature::ExpertMap,
                                 feature::MixedFormats, feature::MixedGateUp, feature::MixedExperts>());
}

/// Experts with every number of tokens that a tile of a card's kernels has room for, and one more.
TEST_P(EdgesTest, ExpertsOfManySizes) {
  const FeatureSet plain = features_of_sizes(features());
  const std::vector<Format> formats = members(backend().can.weights);
  for (const std::vector<int>& counts :
       {std::vector{1, 17, 33, 49, 64, 80}, {16, 81, 96, 97, 112, 130}, {113, 128, 129, 144, 145, 161}}) {
    const std::vector<std::int32_t> ids = ids_of(counts);
    const std::vector<float> weights(ids.size(), 0.5f);
    // The larger ones differ by the number of tokens alone, and have several blocks of columns instead. A
    // processor's tiles do not differ by the format either.
    const bool all = counts.front() == 1, of_card = backend().can.device == DeviceKinds::of<device::Cuda>();
    const Shape shape =
        all ? Shape{.hidden = 40, .intermediate = 72} : Shape{.hidden = 160, .intermediate = 136};
    for (const Format format : formats) {
      const bool one = all && !of_card ? format == formats.front() : format == Formats::of<format::Mxfp4>();
      if (!one && !(all && of_card)) continue;
      for (const DType dtype : {DType::bf16, DType::f32})
        Problem(make_case(format, format, activation(), applicable(plain, format), shape), Numbers::noisy,
                {.tokens = static_cast<int>(ids.size() / 2), .dtype = dtype})
            .with_routing(ids, weights)
            .check(backend());
    }
  }
}

/// Averages for each of which a card that keeps a row's sum in its tensor cores has a kernel, as row_columns
/// of enqueue_warpgroups.cpp chooses it, and experts that fill its tile, nearly do, and have one token more.
TEST_P(EdgesTest, ExpertsOfEveryAverageSize) {
  if (backend().can.device != DeviceKinds::of<device::Cuda>()) GTEST_SKIP() << "tiles of cards";
  struct Size {
    int tile, average;
  };
  const FeatureSet plain = features_of_sizes(features());
  for (const auto& [tile, average] : {Size{16, 12},
                                      {32, 21},
                                      {48, 35},
                                      {64, 50},
                                      {80, 64},
                                      {96, 78},
                                      {112, 93},
                                      {128, 110},
                                      {160, 134},
                                      {192, 167}}) {
    SCOPED_TRACE(tile);
    const int other = 2 * average - tile;
    const std::vector<std::int32_t> ids = ids_of({tile, tile + 1, tile - 1, other, other, other});
    const std::vector<float> weights(ids.size(), 0.5f);
    for (const Format format : {Formats::of<format::Mxfp4>(), Formats::of<format::Nvfp4>()})
      Problem(make_case(format, format, activation(), applicable(plain, format),
                        {.hidden = 160, .intermediate = 136}),
              Numbers::noisy, {.tokens = static_cast<int>(ids.size() / 2), .dtype = DType::bf16})
          .with_routing(ids, weights)
          .check(backend());
  }
}

/// Groups of both kinds that kernels tell apart and inputs of one type or another, in codes that fill their
/// words.
TEST_P(EdgesTest, IntegersInSmallAndLargeGroups) {
  const int multiple = backend().can.integer_groups.multiple;
  if (multiple == 0) GTEST_SKIP() << "declares no groups";
  FeatureSet of_integers = Features::set<feature::ZeroPoints, feature::ActOrder>();
  of_integers = of_integers.minus(of_integers.minus(backend().can.features));
  for (const Format format : members(backend().can.weights)) {
    if (!is_integer(format) || geometry(format).code_bits % 4 != 0) continue;
    for (const int columns : {32, 128})
      for (const DType dtype : {DType::bf16, DType::f32})
        for (const int tokens : {11, 67})
          if (columns % multiple == 0)
            Problem(make_case(format, format, activation(), of_integers,
                              {.hidden = 160, .intermediate = 136, .columns = columns}),
                    Numbers::noisy, {.tokens = tokens, .dtype = dtype})
                .check(backend());
  }
}

TEST_P(EdgesTest, AWorkspaceThatSplitsChangesNothing) {
  const Format format = members(backend().can.weights).front();
  const Problem exact(everything(format), Numbers::exact, {.tokens = 23});
  const Problem noisy(everything(format), Numbers::noisy, {.tokens = 23});
  const Layer exact_layer = exact.layer(backend()), noisy_layer = noisy.layer(backend());
  for (const int at_once : {1, 2, 7, 22}) {
    SCOPED_TRACE(at_once);
    exact.expect_right(exact.run(exact_layer, at_once));
    noisy.expect_right(noisy.run(noisy_layer, at_once));
  }
}

TEST_P(EdgesTest, AnyNumberOfThreadsGivesTheSameBits) {
  for (const Format format : members(backend().can.weights))
    for (const int tokens : {1, 19}) {
      const Problem problem(everything(format), Numbers::noisy, {.tokens = tokens});
      const Outputs one = problem.run(problem.layer(backend(), 1));
      for (const int threads : {2, 3, 5})
        EXPECT_EQ(problem.run(problem.layer(backend(), threads)), one) << threads;
    }
}

TEST_P(EdgesTest, RunningAgainGivesTheSameBits) {
  const Problem problem(everything(members(backend().can.weights).front()), Numbers::noisy, {.tokens = 19});
  const Layer layer = problem.layer(backend());
  const Outputs first = problem.run(layer);
  for (int round = 0; round < 3; ++round) EXPECT_EQ(problem.run(layer), first);
}

TEST_P(EdgesTest, PackedBytesAreAskedBeforeAndTrueAfter) {
  for (const Format format : members(backend().can.weights)) {
    const Problem problem(everything(format), Numbers::noisy, {.tokens = 1});
    std::int64_t asked = 0;
    for (const FormatGroup& group : format_groups(problem.spec().routed))
      asked += backend().packed_bytes(group.spec);
    if (problem.spec().shared) asked += backend().packed_bytes(problem.spec().shared->experts);
    if (const auto& latent = problem.weights().latent)  // BF16 before, F32 behind
      asked += latent->in.rows * latent->in.cols * 2 + latent->out.rows * latent->out.cols * 4 +
               4 * latent->norm.size;
    EXPECT_GE(asked, problem.layer(backend()).packed_bytes()) << format.str();
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EdgesTest, ::testing::ValuesIn(testing::usable_backends()), test_name);

}  // namespace
}  // namespace sluice::conformance
