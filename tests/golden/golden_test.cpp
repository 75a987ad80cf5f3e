// SPDX-License-Identifier: Apache-2.0
// Plans and explanations of every model on every device, compared with text files that are read in reviews.
// See the README beside this file; --update writes the files anew.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "core/devices.h"
#include "experts/backend.h"
#include "sluice/plan.h"
#include "tests/golden/models.h"

namespace sluice::golden {

bool update = false;  // set by main

namespace {

const std::string kFolder = SLUICE_SOURCE_DIR "/tests/golden/";

/// Processors that nobody has to own. The numbers are round and only their ratio matters to a plan.
DeviceFacts avx2_processor() {
  return {.kind = DeviceKinds::of<device::Cpu>(),
          .name = "a processor with AVX2",
          .has = InstructionList::set<instruction::Avx2, instruction::Fma, instruction::F16c>(),
          .cores = 8,
          .read_gbps = 40,
          .peak_gflops = 800,
          .memory_bytes = std::int64_t{64} << 30};
}

DeviceFacts avx512_processor() {
  DeviceFacts facts = avx2_processor();
  facts.name = "a processor with AVX-512";
  facts.has =
      facts.has.plus(InstructionList::set<instruction::Avx512f, instruction::Avx512bw, instruction::Avx512dq,
                                          instruction::Avx512vl, instruction::Avx512vbmi,
                                          instruction::Avx512vnni, instruction::Avx512bf16>());
  facts.cores = 16;
  facts.read_gbps = 200;
  facts.peak_gflops = 3200;
  return facts;
}

DeviceFacts amx_processor() {
  DeviceFacts facts = avx512_processor();
  facts.name = "a processor with AMX";
  facts.has = facts.has.plus(InstructionList::set<instruction::AmxBf16, instruction::AmxInt8>());
  return facts;
}

DeviceFacts plain_processor() {
  DeviceFacts facts = avx2_processor();
  facts.name = "a processor with neither";
  facts.has = {};
  return facts;
}

std::vector<DeviceFacts> devices() {
  std::vector<DeviceFacts> all{plain_processor(), avx2_processor(), avx512_processor()};
  for (const char* card : {"a100", "l40s", "h100", "h200", "b200"}) all.push_back(known_device(card));
  return all;
}

std::string read_file(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_golden(const std::string& name, const std::string& got) {
  const std::string path = kFolder + name + ".txt";
  if (update) {
    std::ofstream(path) << got;
    ADD_FAILURE() << path << " was written; read the diff and run again without --update";
    return;
  }
  EXPECT_EQ(got, read_file(path)) << path << " says otherwise; if the change is meant, run with --update";
}

/// True in a build like the one that wrote the files: with the kernels of every processor, and none of cards.
bool built_as_the_files_were() {
  for (const BackendInfo& info : backends_info())
    if (info.built != (info.device == "cpu")) return false;
  return true;
}

class GoldenTest : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    if (!built_as_the_files_were()) GTEST_SKIP() << "the files are written without kernels for cards";
  }
};

TEST_P(GoldenTest, PlansOnEveryDevice) {
  std::string text;
  for (const DeviceFacts& device : devices())
    text += explain(choose({.layer = GetParam().layer, .device = device})) + "\n";
  expect_golden(GetParam().name, text);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::ValuesIn(models()),
                         [](const auto& test) { return test.param.name; });

/// Every backend asked for by name on every processor and on a card.
TEST(GoldenForced, PlansByName) {
  if (!built_as_the_files_were()) GTEST_SKIP() << "the files are written without kernels for cards";
  const LayerSpec layer = models().front().layer;
  std::string text;
  for (const BackendInfo& info : backends_info())
    for (const DeviceFacts& device :
         {plain_processor(), avx2_processor(), avx512_processor(), known_device("h100")})
      text +=
          explain(choose({.layer = layer, .device = device, .tokens = {1, 64}, .by_name = info.name})) + "\n";
  expect_golden("by_name", text);
}

/// Few tokens, some and many, from anybody and from callers to whom a token's company must not matter.
TEST(GoldenTiles, PlansWithAndWithoutBatchInvariance) {
  if (!built_as_the_files_were()) GTEST_SKIP() << "the files are written without kernels for cards";
  const LayerSpec layer = models().front().layer;
  std::string text;
  for (const std::vector<CallMode>& calls :
       {std::vector<CallMode>{}, {CallModes::of<call::BatchInvariant>()}})
    for (const int tokens : {1, 16, 256})
      text +=
          explain(choose({.layer = layer, .device = amx_processor(), .tokens = {tokens}, .calls = calls})) +
          "\n";
  expect_golden("batch_invariant", text);
}

}  // namespace
}  // namespace sluice::golden

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) sluice::golden::update |= std::string_view(argv[i]) == "--update";
  return RUN_ALL_TESTS();
}
