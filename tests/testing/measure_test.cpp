// SPDX-License-Identifier: Apache-2.0
// The measuring itself. No time is asserted, only how times are summed up and that a benchmark says
// consistent things.
#include "testing/measure.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "core/devices.h"
#include "format/formats.h"
#include "sluice/plan.h"
#include "testing/roof_kernels.h"
#include "testing/roof_memory.h"
#include "testing/synthetic.h"

namespace sluice::testing {
namespace {

Format named(std::string_view name) { return Format::parse(name).value(); }

TEST(Times, AreOrderStatistics) {
  std::vector<double> windows(101);
  std::iota(windows.rbegin(), windows.rend(), 5.0);
  const Times times = summarise(windows);
  EXPECT_EQ(times.best_us, 5.0);
  EXPECT_EQ(times.p10_us, 15.0);
  EXPECT_EQ(times.median_us, 55.0);
  EXPECT_EQ(times.windows, 101);
  EXPECT_EQ(summarise({}).windows, 0);
  EXPECT_EQ(summarise({3}).median_us, 3.0);
}

TEST(Times, CallsArePreparedWarmedUpAndCounted) {
  int prepared = 0, called = 0;
  const auto count = [&](const Budget& budget) {
    prepared = called = 0;
    return time_calls(
        budget, [&] { ++prepared; }, [&] { EXPECT_EQ(prepared, ++called); });
  };
  EXPECT_EQ(count({.warm_up = 3, .least = 5, .most = 100, .seconds = 0}).windows, 5);
  EXPECT_EQ(called, 8);
  EXPECT_EQ(count({.warm_up = 0, .least = 5, .most = 7, .seconds = 100}).windows, 7);
  EXPECT_EQ(called, 7);
}

/// Nothing, two levels by name, and all that this machine has, which may be bf16 and int8 dot products.
std::vector<Instructions> levels() {
  const Instructions here = detect().has;
  std::vector<Instructions> list = {{}, here};
  for (const std::string_view name : {"cpu.avx2", "cpu.avx512"})
    if (known_device(name).has.minus(here).empty()) list.push_back(known_device(name).has);
  return list;
}

TEST(RoofKernels, ReadEveryByteAtEveryLevel) {
  alignas(64) std::byte data[1024] = {};
  for (const Instructions& level : levels()) {
    const RoofKernels kernels = roof_kernels(level);
    EXPECT_EQ(kernels.read(data, sizeof(data)), 0u);
    for (std::byte& byte : data) {
      byte = std::byte{1};
      EXPECT_NE(kernels.read(data, sizeof(data)), 0u) << "byte " << &byte - data << " of " << level.str();
      byte = std::byte{0};
    }
  }
}

/// x -> 0.999 x + 0.001 comes to rest at 1 in every lane; dot products add the same every round.
TEST(RoofKernels, MultiplyAndAdd) {
  for (const Instructions& level : levels())
    for (const Arithmetic& kind : roof_kernels(level).arithmetic) {
      EXPECT_NE(kind.run(1), kind.run(2)) << kind.name;
      EXPECT_GE(kind.lanes, 32) << kind.name;
      if (kind.name == "f32_fma")
        EXPECT_GT(kind.run(20000), 0.9f);
      else
        EXPECT_EQ(kind.run(2) - kind.run(1), kind.run(3) - kind.run(2)) << kind.name;
    }
}

std::string names_of(const RoofKernels& kernels) {
  std::string names;
  for (const Arithmetic& kind : kernels.arithmetic) names += std::string(kind.name) + " ";
  return names;
}

TEST(RoofKernels, HaveWhatTheProcessorHas) {
  if (detect().has.empty()) GTEST_SKIP() << "kernels in plain C++ have no choice";
  using namespace instruction;
  Instructions has = known_device("cpu.avx512").has;
  const auto without = [&](Instruction one) {
    Instructions only;
    only.add(one);
    return has.minus(only);
  };
  has.add(InstructionList::of<Avx512bf16>());
  has.add(InstructionList::of<Avx512vnni>());
  EXPECT_EQ(names_of(roof_kernels(has)), "f32_fma bf16_dot int8_dot ");
  EXPECT_EQ(roof_kernels(has).fastest_exact().name, "bf16_dot");
  EXPECT_EQ(names_of(roof_kernels(without(InstructionList::of<Avx512bf16>()))), "f32_fma int8_dot ");
  EXPECT_EQ(roof_kernels(without(InstructionList::of<Avx512bf16>())).fastest_exact().name, "f32_fma");
  EXPECT_EQ(names_of(roof_kernels(known_device("cpu.avx2").has)), "f32_fma ");
}

TEST(Rate, IsWorkInTheTimeOfEachRank) {
  const Rate rate = rate_of({.best_us = 1, .p10_us = 2, .median_us = 4, .windows = 9}, 8000);
  EXPECT_EQ(rate.best, 8.0);
  EXPECT_EQ(rate.p10, 4.0);
  EXPECT_EQ(rate.median, 2.0);
  EXPECT_EQ(rate_of({}, 8000).best, 0.0);
}

void expect_rate(const Rate& rate) {
  EXPECT_GT(rate.median, 0);
  EXPECT_GE(rate.p10, rate.median);
  EXPECT_GE(rate.best, rate.p10);
}

TEST(RoofMeter, MeasuresEveryCeiling) {
  const auto team = make_thread_team(2);
  RoofMeter meter(*team, std::size_t{24} << 20);
  const Ceilings ceilings = meter.ceilings(3);
  for (const Rate& rate : {ceilings.slices_2m, ceilings.slices_4k, ceilings.sequential}) expect_rate(rate);
  EXPECT_TRUE(ceilings.huge_pages >= 0 && ceilings.huge_pages <= 1) << ceilings.huge_pages;
  ASSERT_EQ(ceilings.arithmetic.size(), roof_kernels(detect().has).arithmetic.size());
  for (const Ceilings::Arithmetic& kind : ceilings.arithmetic) expect_rate(kind.gflops);
  EXPECT_EQ(meter.roof().read.windows, 0) << "ceilings are no windows of the roof";
}

/// Every byte of a window is read in both ways, whatever the number of workers.
TEST(RoofMemory, ReadsWholeWindows) {
  static std::atomic<std::size_t> bytes_read;
  const ReadAll count = [](const std::byte*, std::size_t bytes) -> std::uint64_t {
    bytes_read += bytes;
    return 0;
  };
  for (const int workers : {1, 3}) {
    const auto team = make_thread_team(workers);
    RoofMemory memory(*team, count, Pages::small, std::size_t{36} << 20);
    for (int i = 0; i < 3; ++i) {
      bytes_read = 0;
      EXPECT_GT(memory.read_slices(), 0);
      EXPECT_EQ(bytes_read, memory.window_bytes());
      bytes_read = 0;
      EXPECT_GT(memory.read_sequentially(), 0);
      EXPECT_EQ(bytes_read, memory.window_bytes());
    }
    EXPECT_EQ(memory.huge_part(), 0);
  }
}

TEST(RoofMeter, CountsItsWindows) {
  const auto team = make_thread_team(2);
  RoofMeter meter(*team, std::size_t{24} << 20);
  EXPECT_EQ(meter.roof().read.windows, 0);
  meter.window();
  meter.window();
  const Roof roof = meter.roof();
  EXPECT_EQ(roof.read.windows, 2);
  EXPECT_EQ(roof.compute.windows, 2);
  EXPECT_GT(roof.read_gbps, 0);
  EXPECT_GT(roof.gflops, 0);
  EXPECT_GE(roof.read.median_us, roof.read.best_us);
  meter.restart();
  EXPECT_EQ(meter.roof().read.windows, 0);
}

BenchRequest small_request(std::shared_ptr<Executor> executor) {
  BenchRequest request{
      .layer = public_shape("gpt-oss-20b", named("mxfp4")), .shape = "small", .executor = executor};
  request.layer.routed.hidden = 128;
  request.layer.routed.intermediate = 64;
  request.tokens = {1, 40};
  request.cold_bytes = std::size_t{24} << 20;
  request.ceiling_windows = 2;
  request.budget = {.warm_up = 1, .least = 3, .most = 3, .seconds = 0};
  return request;
}

TEST(Bench, SaysWhatItMeasured) {
  const std::shared_ptr<Executor> team = make_thread_team(2);
  BenchRequest request = small_request(team);
  request.backend = "reference";
  int heard = 0;
  const auto results =
      bench_layer(request, synthetic_weights(request.layer, 1, *team),
                  [&](const BenchResult& result) { EXPECT_EQ(result.tokens, request.tokens[heard++]); });
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(heard, 2);
  for (const BenchResult& result : results) {
    EXPECT_EQ(result.backend, "reference");
    EXPECT_EQ(result.shape, "small");
    EXPECT_EQ(result.format, "mxfp4");
    EXPECT_EQ(result.threads, 2);
    EXPECT_EQ(result.windows, 3);
    EXPECT_EQ(result.flops, 2.0 * 3 * 128 * 64 * 4 * result.tokens);
    EXPECT_TRUE(result.best_us > 0 && result.best_us <= result.p10_us && result.p10_us <= result.median_us);
    EXPECT_DOUBLE_EQ(result.share_of_floor, result.floor_us / result.median_us);
    const double memory_us = static_cast<double>(result.bytes) / result.roof.read_gbps * 1e-3;
    const double compute_us = result.flops / result.roof.gflops * 1e-3;
    EXPECT_DOUBLE_EQ(result.floor_us, std::max(memory_us, compute_us));
    EXPECT_DOUBLE_EQ(result.share_of_floor_p10, result.floor_p10_us / result.p10_us);
    EXPECT_DOUBLE_EQ(result.share_of_floor_best, result.floor_best_us / result.best_us);
    EXPECT_TRUE(result.floor_best_us <= result.floor_p10_us && result.floor_p10_us <= result.floor_us);
    EXPECT_EQ(result.roof.arithmetic, roof_kernels(detect().has).fastest_exact().name);
    EXPECT_EQ(result.ceilings, results[0].ceilings);
    EXPECT_GE(result.roof.read.windows, 3);
  }
  const std::int64_t expert = experts_bytes(request.layer.routed, 1);
  EXPECT_EQ(results[0].bytes, 4 * expert);
  EXPECT_GT(results[1].bytes, 28 * expert);
  EXPECT_LE(results[1].bytes, 32 * expert);
}

TEST(Bench, ThrowsWhatThePlanSays) {
  const std::shared_ptr<Executor> team = make_thread_team(1);
  BenchRequest request = small_request(team);
  request.backend = "no such backend";
  EXPECT_ANY_THROW(bench_layer(request, synthetic_weights(request.layer, 1, *team)));
}

}  // namespace
}  // namespace sluice::testing
