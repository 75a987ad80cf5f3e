// SPDX-License-Identifier: Apache-2.0
// Section F of the reports: odd sizes. Those that are about slices of one expert over ranks are in
// tests/engine.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "oracle/oracle.h"
#include "sluice/error.h"
#include "sluice/slice.h"
#include "testing/draw.h"
#include "testing/synthetic.h"
#include "testing/usable_backends.h"
#include "tests/conformance/judge.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

using conformance::Problem;
using testing::Numbers;

/// Ranks give the flat call's bits, or of the definition, which rounds a sum once, its numbers.
void expect_same(const Backend& backend, const std::vector<float>& flat, const std::vector<float>& summed) {
  ASSERT_EQ(flat.size(), summed.size());
  if (testing::is_reference(backend))
    EXPECT_LT(rel_l2(summed, flat), 1e-6) << backend.name;
  else
    EXPECT_TRUE(std::ranges::equal(flat, summed)) << backend.name;
}

TEST(Reports, B56_TheOutputHasTheModelsWidth) {
  LayerSpec spec = testing::public_shape("gpt-oss-20b", kMxfp4);
  ASSERT_EQ(spec.routed.hidden, 2880);
  spec.routed.intermediate = 96;
  spec.routed.experts = spec.routed.local_experts = spec.router.experts = 8;
  const auto team = make_thread_team(2);
  const Toy toy{.spec = spec, .weights = testing::synthetic_weights(spec, 6, *team)};
  const Call call = draw_call(spec, 5, 7);
  for (const Backend* backend : fitting(spec, {kContiguous})) {
    const std::vector<float> flat = run(*backend, toy, call).experts;
    ASSERT_EQ(flat.size(), 5u * 2880);
    expect_same(*backend, flat, over_ranks(*backend, toy, call, {{0, 1, 2, 3}, {4, 5, 6, 7}}));
  }
}

TEST(Reports, B59_APrimeFactorInTheIntermediateSize) {
  int ran = 0, not_divisible = 0;
  for (const Format format : all_formats())
    for (const Activation activation : {kRelu2, kSilu})
      for (const int intermediate : {1856, 928, 464, 232}) {
        if (is_integer(format) && intermediate > 464) continue;  // slow to draw
        conformance::Case made = conformance::make_case(format, format, activation, {},
                                                        {.hidden = 32, .intermediate = intermediate});
        made.spec.routed.experts = made.spec.routed.local_experts = made.spec.router.experts = 2;
        made.spec.routed.intermediate = intermediate;  // which make_case rounds up
        const format::Geometry& shape = geometry(format);
        if (shape.group_rows == 1 && shape.group_cols > 0 && intermediate % shape.group_cols != 0) {
          refused([&] { validate(made.spec); }, {"do not divide"});
          ++not_divisible;
          continue;
        }
        const Problem problem(made, Numbers::noisy, {.tokens = 2});
        for (const Backend* backend : fitting(made.spec)) problem.check(*backend), ++ran;
      }
  EXPECT_GT(ran, 2 * not_divisible);
}

/// A matrix that is the corner of a larger one, whose rest is all `rest`.
struct Padded {
  format::Encoded whole;
  WeightMatrix corner;
};

Padded padded(Format format, Size size, Size room, std::byte rest) {
  const std::vector<float> values = testing::Draw(21).normals(room.rows * room.cols, 0.2);
  const Grouping grouping{.columns = 32};
  Padded made{is_integer(format) ? encode(format, grouping, values.data(), room.rows, room.cols)
                                 : encode(format, values.data(), room.rows, room.cols),
              WeightMatrix{.format = format}};
  made.whole.matrix.second_scale = 1;
  const format::Geometry& geometry = sluice::geometry(format);
  const WeightMatrix& all = made.whole.matrix;
  const std::int64_t line = is_integer(format) ? all.integers.codes.line_stride : all.row_stride;
  for (std::int64_t r = 0; r < room.rows; ++r) {
    const std::int64_t first = r < size.rows ? size.cols * geometry.code_bits / 8 : 0;
    const std::int64_t bytes = room.cols * geometry.code_bits / 8;
    std::fill_n(made.whole.codes.begin() + r * line + first, bytes - first, rest);
  }
  const std::int64_t group = is_integer(format) ? 32 : geometry.group_cols;
  const std::size_t scale = static_cast<std::size_t>(bits(all.scales.dtype)) / 8;
  for (std::int64_t r = 0; geometry.scaled && geometry.group_rows == 1 && r < room.rows; ++r)
    for (std::int64_t j = 0; j < (group == 0 ? 1 : room.cols / group); ++j)
      if (r >= size.rows || (group > 0 && j * group >= size.cols))
        std::memset(made.whole.scales.data() + r * all.scales.row_stride + j * all.scales.col_stride,
                    static_cast<int>(rest), scale);
  made.corner = all;
  made.corner.rows = size.rows;
  made.corner.cols = size.cols;
  return made;
}

TEST(Reports, B60_WhatLiesAroundAMatrixIsNeverRead) {
  for (const Format format : all_formats()) {
    const LayerSpec spec = spec_of(format, kSilu, {}, {.hidden = 64, .intermediate = 704});
    const Call call{.tokens = 3, .hidden = draw_rows(3, 64, 4)};
    const auto layer_with = [&](std::byte rest) {
      Toy toy = make(spec, {Expert{.gate = {}, .up = {}, .down = {}}});
      const auto wide = std::make_shared<Padded>(padded(format, {704, 64}, {768, 64}, rest));
      const auto tall = std::make_shared<Padded>(padded(format, {64, 704}, {64, 768}, rest));
      toy.weights.routed[0] = {.gate = wide->corner, .up = wide->corner, .down = tall->corner};
      keep(toy, wide);
      keep(toy, tall);
      return toy;
    };
    const Toy clean = layer_with(std::byte{0}), poisoned = layer_with(std::byte{0xFF});
    for (const Backend* backend : fitting(spec)) {
      const Output out = run(*backend, poisoned, call);
      EXPECT_EQ(out, run(*backend, clean, call)) << backend->name << ", " << format.str();
      EXPECT_TRUE(std::isfinite(norm(out.experts))) << backend->name << ", " << format.str();
      EXPECT_GT(norm(out.experts), 0) << backend->name << ", " << format.str();
    }
  }
}

/// 768 columns in groups of 256 over any number of workers.
/// The report's own: Q4_K super-blocks of 256 in 768 columns, over any number of threads; and over ranks: a
/// cut within a super-block zeroes the other rank's groups of 32, and one within such a group is refused.
void expect_super_blocks_whole() {
  constexpr Format kQ4K = Formats::of<format::Q4K>();
  Expert expert;
  for (int j = 0; j < 768; ++j) expert.up.push_back({j, 0, 1});
  Toy toy = make(spec_of(kBf16, kRelu2, {}, {.hidden = 32, .intermediate = 768}), {expert});
  // Blocks of 256: d of 2 and dmin of 3 (binary16), eight scales and minimums of 1 (6 bits each), codes of 2,
  // so that a weight is 2 * 2 - 3, and none is zero.
  const auto ones = shared(encode(kQ4K, std::vector<float>(32 * 768).data(), 32, 768));
  constexpr unsigned char kHead[] = {0, 0x40, 0, 0x42, 1, 1, 1, 1, 1, 1, 1, 1, 0x11, 0x11, 0x11, 0x11};
  for (std::size_t at = 0; at < ones->codes.size(); at += 144) {
    std::memcpy(ones->codes.data() + at, kHead, sizeof kHead);
    std::memset(ones->codes.data() + at + sizeof kHead, 0x22, 128);
  }
  float row[768];
  decode_row(ones->matrix, 31, row);
  ASSERT_TRUE(std::ranges::all_of(row, [](float value) { return value == 1; }));
  toy.spec.routed.formats.down = kQ4K;
  toy.weights.routed[0].down = ones->matrix;
  keep(toy, ones);
  const auto all_are = [](const std::vector<float>& outputs, float value) {
    return std::ranges::all_of(outputs, [=](float y) { return y == value; });
  };
  for (const Backend* backend : fitting(toy.spec)) {
    for (const int threads : {1, 2, 3, 5})
      EXPECT_TRUE(all_are(run(layer_on(*backend, toy, threads), one_hot(32)).experts, 768))
          << backend->name << ", " << threads << " threads";
    for (const auto& [first, last] :
         {std::pair{0, 512}, std::pair{512, 768}, std::pair{0, 384}, std::pair{384, 768}}) {
      const IntermediateRange range{first, last};
      const LayerSlice part = slice(toy.spec, toy.weights, {.routed = range});
      EXPECT_TRUE(all_are(run(*backend, {.spec = part.spec, .weights = part.weights}, one_hot(32)).experts,
                          static_cast<float>(range.last - range.first)))
          << backend->name << ", from " << range.first;
    }
  }
  EXPECT_EQ(refused([&] { (void)slice(toy.spec, toy.weights, {.routed = {0, 400}}); }), "slice_in_group");
}

TEST(Reports, B61_GroupsAreNotCutByTheNumberOfWorkers) {
  for (const Format format : {kInt4, kInt8}) {
    LayerSpec spec = spec_of(format, kRelu2, {}, {.hidden = 32, .intermediate = 768});
    spec.routed.formats.down_grouping.columns = 256;
    Expert ones;
    for (int j = 0; j < 768; ++j) {
      ones.up.push_back({j, 0, 1});
      for (int i = 0; i < 32; ++i) ones.down.push_back({i, j, 1});
    }
    const Toy toy = make(spec, {ones});
    for (const Backend* backend : fitting(spec))
      for (const int threads : {1, 2, 3, 5}) {
        const Output out = run(layer_on(*backend, toy, threads), one_hot(32));
        for (const float y : out.experts) EXPECT_EQ(y, 768) << backend->name << ", " << threads << " threads";
      }
  }
  expect_super_blocks_whole();
}

/// One kernel for 176 columns and for 192, as the plan shows; and the same numbers as one token at a time.
TEST(Reports, B62_NoWidthFallsBackToSomethingSlow) {
  for (const Format format : {kNvfp4, kBf16, kFp8Channel}) {
    const auto spec_for = [&](int intermediate) {
      return spec_of(format, kSilu, {},
                     {.hidden = 64, .intermediate = intermediate, .experts = 128, .top_k = 8});
    };
    for (const Backend* backend : fitting(spec_for(176))) {
      const auto kernel_for = [&](int intermediate) {
        return choose({.layer = spec_for(intermediate),
                       .device = detect(),
                       .tokens = {16},
                       .by_name = std::string(backend->name)})
            .verdicts[0]
            .kernels[0];
      };
      const auto odd = kernel_for(176), even = kernel_for(192);
      EXPECT_EQ(odd.kernel, even.kernel) << backend->name;
      EXPECT_LE(odd.us, 1.2 * even.us) << backend->name;
    }
    const Plan chosen = choose({.layer = spec_for(176), .device = detect(), .tokens = {16}});
    ASSERT_FALSE(chosen.chosen.empty());
    EXPECT_NE(chosen.chosen, "reference");
    const auto team = make_thread_team(2);
    const Toy toy{.spec = spec_for(176), .weights = testing::synthetic_weights(spec_for(176), 3, *team)};
    const Call call = draw_call(toy.spec, 16, 3);
    const std::vector<float> definition = run(*reference(), toy, call).experts;
    for (const Backend* backend : fitting(toy.spec)) {
      const Layer layer = layer_on(*backend, toy);
      const Output out = run(layer, call);
      if (testing::is_batch_invariant(*backend)) {
        EXPECT_EQ(run(layer, call, 1), out) << backend->name;
      }
      EXPECT_LT(rel_l2(out.experts, definition), 2e-5) << backend->name << ", " << format.str();
    }
  }
}

TEST(Reports, B64_AnyNumberOfTokensGivesTheSameRows) {
  const CallMode invariant = CallModes::of<call::BatchInvariant>();
  for (const Format format : {kInt4, kMxfp4}) {
    const LayerSpec spec =
        spec_of(format, kSilu, {}, {.hidden = 32, .intermediate = 32, .experts = 16, .top_k = 4});
    const Toy toy{.spec = spec, .weights = testing::draw_weights(spec, Numbers::noisy, 2)};
    for (const Backend* backend : fitting(spec, {invariant})) {
      // The definition is slow, and has no tiles.
      const Call many = draw_call(spec, testing::is_reference(*backend) ? 2068 : 16068, 5);
      const Layer layer = layer_on(*backend, toy, 2, {invariant});
      const Output at_once = run(layer, many);
      EXPECT_EQ(run(layer, many, 2048), at_once) << backend->name << ", " << format.str();
      // Each of 1 to 65 tokens, against the tokens of the long call.
      for (int tokens = 1; tokens <= 65; ++tokens) {
        Call first = many;
        first.tokens = tokens;
        first.hidden.resize(static_cast<std::size_t>(tokens) * 32);
        first.ids.resize(static_cast<std::size_t>(tokens) * 4);
        first.weights.resize(first.ids.size());
        const Output out = run(layer, first);
        EXPECT_TRUE(std::ranges::equal(out.experts, std::span(at_once.experts).first(out.experts.size())))
            << backend->name << ", " << format.str() << ", " << tokens << " tokens";
      }
    }
  }
}

double score_of(std::string_view kind, double logit) {
  if (kind.starts_with("sigmoid")) return 1 / (1 + std::exp(-logit));
  if (kind == "sqrt_softplus") return std::sqrt(std::log1p(std::exp(logit)));
  return std::exp(logit);
}

/// The definition of a router without bias and groups, in double, for distinct logits.
void expect_routed(const RouterSpec& spec, int tokens, std::uint64_t seed) {
  const auto experts = static_cast<std::size_t>(spec.experts), k = static_cast<std::size_t>(spec.top_k);
  const std::vector<float> logits =
      testing::Draw(seed).normals(static_cast<std::int64_t>(experts) * tokens, 2);
  std::vector<std::int32_t> ids(k * tokens), order(experts);
  std::vector<float> weights(k * tokens);
  std::vector<std::byte> scratch(top_k_scratch_bytes(spec));
  top_k(spec, {.logits = logits, .tokens = tokens}, ids, weights, scratch);
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    const auto logit = [&](std::int32_t e) {
      return double{logits[t * experts + static_cast<std::size_t>(e)]};
    };
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](auto a, auto b) { return logit(a) > logit(b); });
    const std::string_view kind = spec.score.str();
    double all = 0;
    for (std::size_t e = 0; e < (kind == "softmax" ? experts : k); ++e)
      all += score_of(kind, logit(order[e]));
    for (std::size_t i = 0; i < k; ++i) {
      EXPECT_EQ(ids[t * k + i], order[i]) << kind << ", " << spec.experts << " experts, top " << spec.top_k;
      const double score = score_of(kind, logit(order[i]));
      const double want = kind.starts_with("softmax") ? score / all : score;
      EXPECT_NEAR(weights[t * k + i], want, 1e-6) << kind << ", " << spec.experts << " experts";
    }
  }
}

TEST(Reports, B65_AnyNumberOfExperts) {
  for (const std::string_view kind : Score::all())
    for (const int experts : {1, 3, 96, 154, 160, 161, 896})
      for (const int top_k : {1, 4, 6})
        for (const int tokens : {0, 1, 5})
          if (top_k <= experts)
            expect_routed({.score = *Score::parse(kind), .experts = experts, .top_k = top_k}, tokens, 77);
  // And in a layer.
  const LayerSpec spec =
      spec_of(kMxfp4, kSilu, {}, {.hidden = 32, .intermediate = 32, .experts = 161, .top_k = 6});
  const Toy toy{.spec = spec, .weights = testing::draw_weights(spec, Numbers::noisy, 8)};
  const Call call = draw_call(spec, 40, 9);
  const std::vector<float> definition = run(*reference(), toy, call).experts;
  for (const Backend* backend : fitting(spec))
    EXPECT_LT(rel_l2(run(*backend, toy, call).experts, definition), 1e-5) << backend->name;
}

TEST(Reports, B66_AnyTopK) {
  for (const int top_k : {1, 8, 10, 16, 22, 32})
    expect_routed({.score = *Score::parse("softmax"), .experts = 512, .top_k = top_k}, 3, 5);
  expect_routed({.score = *Score::parse("sigmoid"), .experts = 4, .top_k = 4}, 3, 5);
  for (const Shape shape : {Shape{32, 32, 40, 32}, Shape{32, 32, 4, 4}, Shape{32, 32, 40, 22}}) {
    const LayerSpec spec = spec_of(kNvfp4, kSilu, {}, shape);
    const Toy toy{.spec = spec, .weights = testing::draw_weights(spec, Numbers::noisy, 8)};
    const Call call = draw_call(spec, 9, 4);
    const std::vector<float> definition = run(*reference(), toy, call).experts;
    for (const Backend* backend : fitting(spec))
      EXPECT_LT(rel_l2(run(*backend, toy, call).experts, definition), 1e-5)
          << backend->name << ", " << shape.top_k;
  }
  const LayerSpec too_many = spec_of(kNvfp4, kSilu, {}, {.experts = 4, .top_k = 5});
  EXPECT_EQ(refused([&] { (void)choose({.layer = too_many, .device = detect()}); }, {"top_k 5 of 4"}),
            "bad_spec");
}

}  // namespace
}  // namespace sluice::reports
