// SPDX-License-Identifier: Apache-2.0
// The fuzz targets without libFuzzer: the seeds are what they should be, and some thousand mutations of them,
// the same in every run, are refused or accepted and do nothing worse.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "targets.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Seed {
  std::string name, bytes;
};

std::vector<Seed> seeds(const char* corpus) {
  std::vector<Seed> all;
  for (const auto& entry :
       fs::directory_iterator(fs::path(SLUICE_SOURCE_DIR) / "tests/fuzz/corpus" / corpus)) {
    std::ifstream file(entry.path(), std::ios::binary);
    all.push_back({entry.path().filename().string(), {std::istreambuf_iterator<char>(file), {}}});
  }
  std::sort(all.begin(), all.end(), [](const Seed& a, const Seed& b) { return a.name < b.name; });
  return all;
}

/// One mutation, of the kinds that find mistakes in parsers.
std::string mutate(std::string bytes, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random()) % n; };
  constexpr std::string_view kPieces[] = {"18446744073709551615",
                                          "18446744073709551616",
                                          "-1",
                                          "0",
                                          "281474976710656",
                                          "1e999",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          "\"",
                                          ",",
                                          "null",
                                          "true",
                                          "NaN",
                                          "\\u0000",
                                          "\xff",
                                          "[[[[[[[[",
                                          "__metadata__",
                                          "128",
                                          "1",
                                          "*",
                                          "re:(a*)*$"};
  const std::size_t at = below(bytes.size() + 1), length = below(9);
  switch (below(5)) {
    case 0:
      if (at < bytes.size()) bytes[at] = static_cast<char>(random());
      break;
    case 1:
      bytes.erase(at, length);
      break;
    case 2:
      bytes.insert(at, kPieces[below(std::size(kPieces))]);
      break;
    case 3:
      bytes.insert(at, bytes.substr(below(bytes.size()), length * 4));
      break;
    default: {  // a number becomes another
      const std::size_t digit = bytes.find_first_of("0123456789", at);
      if (digit == bytes.npos) break;
      const std::size_t end = std::min(bytes.find_first_not_of("0123456789", digit), bytes.size());
      bytes.replace(digit, end - digit, kPieces[below(5)]);
    }
  }
  return bytes;
}

template <class Target>
void mutate_all(const char* corpus, int rounds, Target target) {
  std::mt19937 random(20261129);
  int accepted = 0;
  for (const Seed& seed : seeds(corpus))
    for (int round = 0; round < rounds; ++round) {
      std::string bytes = seed.bytes;
      for (int step = 0; step <= round % 3; ++step) bytes = mutate(std::move(bytes), random);
      try {
        accepted += target(std::as_bytes(std::span(bytes)));
      } catch (const std::exception& error) {
        FAIL() << seed.name << " round " << round << ": " << error.what() << "\n" << bytes;
      }
    }
  ::testing::Test::RecordProperty("accepted", accepted);
}

/// Seeds whose names start with "ok" are accepted, the others refused.
template <class Target>
void replay(const char* corpus, Target target) {
  const auto all = seeds(corpus);
  EXPECT_GE(all.size(), 8u);
  for (const Seed& seed : all)
    EXPECT_EQ(target(std::as_bytes(std::span(seed.bytes))), seed.name.starts_with("ok")) << seed.name;
}

TEST(Replay, SafetensorsSeeds) { replay("safetensors", fuzz::safetensors); }
TEST(Replay, SafetensorsMutations) { mutate_all("safetensors", 400, fuzz::safetensors); }
TEST(Replay, ConfigurationSeeds) { replay("config", fuzz::configuration); }
TEST(Replay, ConfigurationMutations) { mutate_all("config", 150, fuzz::configuration); }

TEST(Replay, GgufSeeds) { replay("gguf", fuzz::gguf); }
TEST(Replay, GgufMutations) { mutate_all("gguf", 300, fuzz::gguf); }

}  // namespace
}  // namespace sluice
