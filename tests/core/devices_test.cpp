// SPDX-License-Identifier: Apache-2.0
// Devices by name, what cpuid means, and what a cgroup allows. Machines are invented; this one is only asked
// for sanity.
#include "core/devices.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "core/gpus.h"
#include "core/machine.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using namespace instruction;

template <class I>
bool has(const DeviceFacts& facts) {
  return facts.has.has(InstructionList::of<I>());
}

TEST(Devices, NamesParseToThemselves) {
  for (const std::string_view name : DeviceKind::all())
    EXPECT_EQ(DeviceKind::parse(name).value().str(), name);
  for (const std::string_view name : Instruction::all())
    EXPECT_EQ(Instruction::parse(name).value().str(), name);
  EXPECT_EQ(DeviceKind::all().size(), 2u);
}

TEST(Devices, EveryKnownNameHasFactsThatMakeSense) {
  std::set<std::string_view> names;
  for (const std::string_view name : known_device_names()) {
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
    const DeviceFacts facts = known_device(name);
    EXPECT_FALSE(facts.name.empty()) << name;
    EXPECT_GT(facts.cores, 0) << name;
    EXPECT_GT(facts.read_gbps, 1.0) << name;
    EXPECT_GT(facts.peak_gflops, 1.0) << name;
    EXPECT_GT(facts.memory_bytes, std::int64_t{1} << 28) << name;
    const bool cpu = name == "auto" || name.starts_with("cpu");
    EXPECT_EQ(facts.kind.str(), cpu ? "cpu" : "cuda") << name;
    EXPECT_EQ(has<CpAsync>(facts), !cpu) << name;
  }
  for (const std::string_view wanted : {"auto",    "cpu",    "cpu.avx2", "cpu.avx512", "cpu.avx512_bf16",
                                        "cpu.amx", "sm80",   "sm86",     "sm89",       "sm90",
                                        "sm100",   "sm120",  "a100",     "a10",        "rtx3090",
                                        "l4",      "l40s",   "rtx4090",  "h100",       "h200",
                                        "b200",    "rtx5090"})
    EXPECT_TRUE(names.contains(wanted)) << wanted;
}

TEST(Devices, InstructionsOfTheGpuGenerations) {
  const auto text = [](std::string_view name) { return known_device(name).has.str(); };
  EXPECT_EQ(text("sm80"), "cp_async, mma_bf16");
  EXPECT_EQ(text("sm86"), "cp_async, mma_bf16");
  EXPECT_EQ(text("sm89"), "cp_async, mma_bf16, mma_fp8");
  EXPECT_EQ(text("sm90"), "cp_async, mma_bf16, mma_fp8, tma, wgmma");
  EXPECT_EQ(text("sm100"), "cp_async, mma_bf16, mma_fp8, tma, mma_block_fp4, tcgen05");
  EXPECT_EQ(text("sm120"), "cp_async, mma_bf16, mma_fp8, tma, mma_block_fp4");
  for (const auto& [card, capability] :
       std::initializer_list<std::pair<std::string_view, std::string_view>>{{"a100", "sm80"},
                                                                            {"a10", "sm86"},
                                                                            {"rtx3090", "sm86"},
                                                                            {"l4", "sm89"},
                                                                            {"l40s", "sm89"},
                                                                            {"rtx4090", "sm89"},
                                                                            {"h100", "sm90"},
                                                                            {"h200", "sm90"},
                                                                            {"b200", "sm100"},
                                                                            {"rtx5090", "sm120"}})
    EXPECT_EQ(text(card), text(capability)) << card;
}

/// As an H200's driver reports it.
GpuReport h200_report() {
  return {.name = "NVIDIA H200",
          .capability = 90,
          .multiprocessors = 132,
          .clock_khz = 1980000,
          .memory_clock_khz = 3201000,
          .memory_bus_bits = 6144,
          .memory_bytes = std::int64_t{140} << 30};
}

TEST(Devices, ACardIsWhatItsDriverReports) {
  const DeviceFacts card = facts_of(h200_report()), known = known_device("h200");
  EXPECT_EQ(card.kind, known.kind);
  EXPECT_EQ(card.name, "NVIDIA H200");
  EXPECT_EQ(card.has, known.has);
  EXPECT_EQ(card.cores, known.cores);
  EXPECT_NEAR(card.read_gbps, known.read_gbps, 0.05 * known.read_gbps);
  EXPECT_NEAR(card.peak_gflops, known.peak_gflops, 0.1 * known.peak_gflops);
  EXPECT_EQ(card.memory_bytes, std::int64_t{140} << 30);
}

/// The capability decides; the name does not.
TEST(Devices, InstructionsFollowFromTheCapability) {
  for (const auto& [capability, like] :
       std::initializer_list<std::pair<int, std::string_view>>{{80, "sm80"},
                                                               {86, "sm86"},
                                                               {87, "sm86"},
                                                               {89, "sm89"},
                                                               {90, "sm90"},
                                                               {100, "sm100"},
                                                               {103, "sm100"},
                                                               {110, "sm89"},
                                                               {120, "sm120"},
                                                               {121, "sm120"},
                                                               {130, "sm89"}}) {
    GpuReport report = h200_report();
    report.capability = capability;
    EXPECT_EQ(facts_of(report).has.str(), known_device(like).has.str()) << capability;
  }
  GpuReport old = h200_report();
  old.capability = 75;
  EXPECT_TRUE(facts_of(old).has.empty());
}

TEST(Devices, ThisMachinesCardsOrNone) {
  const DeviceKind cuda = DeviceKinds::of<device::Cuda>();
  const std::vector<DeviceFacts> cards = detect(cuda);
  if (!cards.empty()) {
    EXPECT_EQ(known_device("cuda").name, cards.front().name);
    EXPECT_EQ(known_device("cuda:0").name, cards.front().name);
    for (const DeviceFacts& card : cards) {
      EXPECT_EQ(card.index, &card - cards.data());
      EXPECT_EQ(known_device("cuda:" + std::to_string(card.index)).index, card.index);
      EXPECT_EQ(card.kind, cuda);
      EXPECT_GT(card.read_gbps, 1.0);
    }
    return;
  }
  try {
    known_device("cuda");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_EQ(error.info().code, "no_device");
  }
}

TEST(Devices, ACardByItsPlace) {
  const auto code = [](std::string_view name) {
    try {
      known_device(name);
    } catch (const Error& error) {
      return error.info().code;
    }
    return std::string("none");
  };
  EXPECT_EQ(code("cuda:4096"), "no_device");
  for (const std::string_view name : {"cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda1"})
    EXPECT_EQ(code(name), "unknown_device") << name;
}

TEST(Devices, TheProcessorIsTheOnlyOneOfItsKind) {
  const std::vector<DeviceFacts> processors = detect(DeviceKinds::of<device::Cpu>());
  ASSERT_EQ(processors.size(), 1u);
  EXPECT_EQ(processors.front().name, detect().name);
}

TEST(Devices, AnInstructionLevelIsExactlyThat) {
  EXPECT_EQ(known_device("cpu.avx2").has.str(), "avx2, fma, f16c");
  EXPECT_EQ(known_device("cpu.avx512").has.str(), "avx2, fma, f16c, avx512f, avx512bw, avx512dq, avx512vl");
  EXPECT_EQ(known_device("cpu.avx512_bf16").has.str(),
            "avx2, fma, f16c, avx512f, avx512bw, avx512dq, avx512vl, avx512_vbmi, avx512_vnni, avx512_bf16");
  EXPECT_EQ(known_device("cpu.amx").has.str(),
            "avx2, fma, f16c, avx512f, avx512bw, avx512dq, avx512vl, avx512_vbmi, avx512_vnni, avx512_bf16, "
            "amx_bf16, amx_int8");
  EXPECT_EQ(known_device("cpu.avx2").cores, detect().cores);
}

TEST(Devices, AnUnknownNameListsTheKnownOnes) {
  for (const std::string_view name : {"h300", "", "cpu.sse", "H100"}) try {
      known_device(name);
      FAIL() << name << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_EQ(error.info().code, "unknown_device");
      for (const std::string_view known : known_device_names())
        EXPECT_NE(error.info().todo.find(known), std::string::npos) << known;
    }
}

TEST(Devices, ThisMachine) {
  const DeviceFacts facts = detect();
  EXPECT_EQ(facts.kind.str(), "cpu");
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GT(memory_bytes(), 0);
  EXPECT_EQ(facts.cores, usable_cores());
}

// cpuid of processors we know, each with the registers that the operating system saves.
constexpr std::uint64_t kSavesYmm = 0x7, kSavesZmm = 0xE7, kSavesTiles = 0x600E7;
constexpr CpuidBits kHaswell{
    .leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29, .leaf7_ebx = 1u << 5, .xcr0 = kSavesYmm};

CpuidBits sapphire_rapids() {
  CpuidBits bits = kHaswell;
  bits.leaf7_ebx |= 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  bits.leaf7_ecx |= 1u << 1 | 1u << 11;
  bits.leaf7_edx |= 1u << 22 | 1u << 24 | 1u << 25;
  bits.leaf7_1_eax |= 1u << 5;
  bits.xcr0 = kSavesTiles;
  return bits;
}

TEST(Cpuid, ProcessorsWeKnow) {
  EXPECT_EQ(instructions_of({}).str(), "nothing");
  EXPECT_EQ(instructions_of(kHaswell).str(), "avx2, fma, f16c");
  EXPECT_EQ(instructions_of(sapphire_rapids()).str(),
            "avx2, fma, f16c, avx512f, avx512bw, avx512dq, avx512vl, avx512_vbmi, avx512_vnni, avx512_bf16, "
            "amx_bf16, "
            "amx_int8");
}

TEST(Cpuid, WhatTheSystemDoesNotSaveIsNotThere) {
  CpuidBits bits = sapphire_rapids();
  bits.xcr0 = kSavesZmm;
  EXPECT_FALSE(instructions_of(bits).has(InstructionList::of<AmxBf16>()));
  EXPECT_TRUE(instructions_of(bits).has(InstructionList::of<Avx512f>()));
  for (const std::uint64_t mask_registers_only : {0x27u, 0x67u, 0xA7u}) {
    bits.xcr0 = mask_registers_only;
    EXPECT_EQ(instructions_of(bits).str(), "avx2, fma, f16c");
  }
  bits.xcr0 = 0x3;
  EXPECT_TRUE(instructions_of(bits).empty());
  bits.xcr0 = 0x200E7;  // tile configuration without tile data
  EXPECT_FALSE(instructions_of(bits).has(InstructionList::of<AmxBf16>()));
}

/// A mount with files in it, gone at the end.
class Cgroup : public ::testing::Test {
 protected:
  void SetUp() override {
    mount_ =
        std::filesystem::path(::testing::TempDir()) /
        ("sluice_cgroup_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(mount_);
    std::filesystem::create_directories(mount_);
  }
  void TearDown() override { std::filesystem::remove_all(mount_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((mount_ / path).parent_path());
    std::ofstream(mount_ / path) << text;
  }
  CgroupLimits limits(const std::string& membership) { return cgroup_limits(membership, mount_.string()); }

  std::filesystem::path mount_;
};

TEST_F(Cgroup, NothingSaidIsNoLimit) {
  for (const std::string membership : {"", "0::/\n", "0::/some/where\n", "nonsense", "4:cpu:/x"}) {
    EXPECT_EQ(limits(membership).cores, CgroupLimits{}.cores) << membership;
    EXPECT_EQ(limits(membership).memory, CgroupLimits{}.memory) << membership;
  }
}

TEST_F(Cgroup, Version2TakesTheTightestOnTheWayUp) {
  write("a/b/cpu.max", "max 100000\n");
  write("a/cpu.max", "250000 100000\n");
  write("cpu.max", "800000 100000\n");
  write("a/b/memory.max", "max\n");
  write("a/memory.max", "4000\n");
  const CgroupLimits got = limits("0::/a/b\n");
  EXPECT_DOUBLE_EQ(got.cores, 2.5);
  EXPECT_EQ(got.memory, 4000);
}

TEST_F(Cgroup, AContainerSeesItsLimitsAtTheRootOfTheMount) {
  write("cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(limits("0::/docker/0123456789\n").cores, 1.5);
}

TEST_F(Cgroup, Version1) {
  write("cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  write("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("memory/job/memory.limit_in_bytes", "9000\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  const CgroupLimits got = limits("12:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n");
  EXPECT_DOUBLE_EQ(got.cores, 3.0);
  EXPECT_EQ(got.memory, 9000);
}

}  // namespace
}  // namespace sluice
