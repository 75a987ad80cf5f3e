// SPDX-License-Identifier: Apache-2.0
// Measuring on cards, as far as it takes none: what is drawn, what shares are of, what a line says.
#include "testing/measure_card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "sluice/error.h"
#include "testing/bench_json.h"
#include "testing/card_meter.h"
#include "testing/synthetic.h"

namespace sluice::testing {
namespace {

TEST(DrawRouting, TokensGoToDifferentExperts) {
  const std::vector<std::int32_t> ids = largest(draw_logits(50, 16, Popularity::uniform, 1), 16, 4);
  ASSERT_EQ(ids.size(), 200u);
  for (std::size_t t = 0; t < 50; ++t)
    EXPECT_EQ(
        distinct_experts({ids.begin() + std::ptrdiff_t(4 * t), ids.begin() + std::ptrdiff_t(4 * t + 4)}, 16),
        4);
  EXPECT_EQ(distinct_experts(ids, 16), 16);
  EXPECT_EQ(distinct_experts({-1, 3, 3, 16}, 16), 1);
}

/// Slots of the most popular expert, of 8000 with one each.
std::int64_t most_popular(Popularity popularity) {
  const std::vector<std::int32_t> ids = largest(draw_logits(8000, 64, popularity, 3), 64, 1);
  std::vector<std::int64_t> counts(64);
  for (const std::int32_t id : ids) ++counts[static_cast<std::size_t>(id)];
  return *std::ranges::max_element(counts);
}

/// 1/64 of the slots, and 1 / (1 + 1/2 + ... + 1/64), which is 0.211.
TEST(DrawRouting, PopularityIsUniformOrZipf) {
  EXPECT_NEAR(static_cast<double>(most_popular(Popularity::uniform)), 8000.0 / 64, 50);
  EXPECT_NEAR(static_cast<double>(most_popular(Popularity::zipf)), 8000 * 0.211, 150);
}

TEST(DrawRouting, TheSeedDecides) {
  EXPECT_EQ(draw_logits(3, 8, Popularity::zipf, 5), draw_logits(3, 8, Popularity::zipf, 5));
  EXPECT_NE(draw_logits(3, 8, Popularity::zipf, 5), draw_logits(3, 8, Popularity::zipf, 6));
}

TEST(DrawRouting, LargestAreInOrder) {
  EXPECT_EQ(largest({0, 3, 1, 2, 9, 7, 8, 6}, 4, 2), (std::vector<std::int32_t>{1, 3, 0, 2}));
}

Ceilings some_ceilings() {
  Ceilings ceilings{.slices_2m = {}, .slices_4k = {}, .sequential = {4000, 4100, 4200}};
  ceilings.arithmetic = {{"bf16_mma", {600e3, 610e3, 620e3}}};
  return ceilings;
}

TEST(CardRoof, IsWhatWasMeasuredOnceOrInThisRun) {
  DeviceFacts card = known_device("h200");
  card.name = "NVIDIA H200";
  EXPECT_EQ(card_roof(card, some_ceilings()).read_gbps, 4650);
  EXPECT_EQ(card_roof(card, some_ceilings()).gflops, 870e3);
  card = known_device("a100");
  EXPECT_EQ(card_roof(card, some_ceilings()).read_gbps, 4000);
  EXPECT_EQ(card_roof(card, some_ceilings()).gflops, 600e3) << "more than the peak by its clocks";
  card = known_device("b200");
  EXPECT_EQ(card_roof(card, some_ceilings()).gflops, card.peak_gflops);
}

BenchResult some_result() {
  BenchResult result{.backend = "cuda.decode",
                     .shape = "gpt-oss-120b",
                     .format = "mxfp4",
                     .processor = "a processor",
                     .time = "2026-11-30T17:45:01Z",
                     .tokens = 16,
                     .threads = 1,
                     .median_us = 250,
                     .p10_us = 240,
                     .p90_us = 275,
                     .best_us = 200,
                     .windows = 30,
                     .bytes = 465'000'000,
                     .flops = 3.48e9};
  result.ceilings = std::make_shared<const Ceilings>(some_ceilings());
  result.card = OnCard{.device = "NVIDIA H200",
                       .driver = "580.159.04",
                       .sm_clock = 1935,
                       .sm_clock_least = 1875,
                       .from = BenchFrom::logits,
                       .routing = Popularity::zipf,
                       .experts_hit = 40.5,
                       .layers = 2,
                       .calls = 16,
                       .launches = 2,
                       .nodes = 3};
  set_card_floors(result, {4650, 870e3, "bf16_wgmma", "measured once on an H200"});
  return result;
}

TEST(CardFloors, AreTheLargerOfBytesAndOperations) {
  BenchResult result = some_result();
  EXPECT_DOUBLE_EQ(result.floor_us, 100);
  EXPECT_DOUBLE_EQ(result.share_of_floor, 0.4);
  EXPECT_DOUBLE_EQ(result.share_of_floor_best, 0.5);
  EXPECT_DOUBLE_EQ(result.card->floor_here_us, 116.25);
  EXPECT_DOUBLE_EQ(result.card->share_of_floor_here, 0.465);
  result.flops = 174e9;
  set_card_floors(result, {4650, 870e3, "", ""});
  EXPECT_DOUBLE_EQ(result.floor_us, 200);
  EXPECT_DOUBLE_EQ(result.card->floor_here_us, 200);
}

/// The line of a card; tests/tools/verbs_test.py holds that file against the schema.
TEST(BenchJson, OfACard) {
  std::ifstream file(SLUICE_SOURCE_DIR "/tests/data/bench_card.json");
  std::stringstream want;
  want << file.rdbuf();
  std::string got = bench_json(some_result());
  const std::string commit = "\"commit\":\"" + std::string(build_commit()) + "\"";
  const std::size_t at = got.find(build_commit().empty() ? "\"commit\":null" : commit);
  ASSERT_NE(at, std::string::npos) << got;
  got.replace(at, got.find(',', at) - at, "\"commit\":null");
  EXPECT_EQ(got, want.str());
}

TEST(BenchJson, WhatIsNotKnownIsNull) {
  BenchResult result = some_result();
  result.card->driver.clear();
  result.card->sm_clock = result.card->sm_clock_least = 0;
  const std::string line = bench_json(result);
  for (const char* field : {"\"driver\":null", "\"sm_clock\":null", "\"sm_clock_least\":null"})
    EXPECT_NE(line.find(field), std::string::npos) << field << " in " << line;
}

std::string code_of(const BenchRequest& request) {
  try {
    bench_device(request);
  } catch (const Error& error) {
    return error.info().code;
  }
  return "";
}

BenchRequest request_of(const std::string& backend, const std::string& device) {
  return {.layer = public_shape("gpt-oss-20b", Format::parse("mxfp4").value()),
          .shape = "",
          .backend = backend,
          .device = device,
          .executor = nullptr};
}

TEST(BenchDevice, IsOfThisMachine) {
  for (const char* name : {"", "auto", "cpu"}) EXPECT_EQ(code_of(request_of("", name)), "") << name;
  EXPECT_EQ(code_of(request_of("reference", "")), "");
  for (const char* name : {"h200", "sm90", "cpu.avx2", "abacus"})
    EXPECT_EQ(code_of(request_of("", name)), "not_measurable") << name;
  BenchRequest skewed = request_of("", "cpu");
  skewed.routing = Popularity::zipf;
  EXPECT_EQ(code_of(skewed), "only_on_cards");
}

TEST(BenchDevice, WithoutACardSaysWhatIsMissing) {
  const bool built = kOpenCard != nullptr;
  if (built && !detect(known_device("h200").kind).empty()) GTEST_SKIP() << "there is a card";
  for (const BenchRequest& request : {request_of("", "cuda"), request_of("", "cuda:1"),
                                      request_of("cuda.mma", ""), request_of("cuda.decode", "")})
    EXPECT_EQ(code_of(request), built ? "no_device" : "no_cuda_build");
}

}  // namespace
}  // namespace sluice::testing
