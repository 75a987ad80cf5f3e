// SPDX-License-Identifier: Apache-2.0
// Packing from a mapped file peaks at the packed size plus one expert: pages of what has been read are given
// back. Measured as the system does, with the process's own high-water mark.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "testing/rounding.h"
#include "testing/usable_backends.h"
#include "tests/engine/scratch_folder.h"
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

constexpr int kExperts = 24, kWidth = 1024;
constexpr std::size_t kMatrix = std::size_t{kWidth} * kWidth * 2;  // bf16
constexpr std::size_t kExpert = 3 * kMatrix;

/// "VmHWM:" or "VmRSS:" of this process, in bytes.
std::size_t resident(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::size_t kilobytes = 0; word == key && status >> kilobytes) return kilobytes * 1024;
  return 0;
}

/// From here on the high-water mark is of what comes.
bool reset_peak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  return clear.good();
}

/// A file of bf16 matrices, mapped as a checkpoint maps its own.
struct MappedWeights {
  testing::ScratchFolder folder;
  std::byte* data = nullptr;

  MappedWeights() {
    const std::string path = folder.path() + "/weights";
    const std::string ones(kExpert, '\x3c');
    for (int e = 0; e < kExperts; ++e) std::ofstream(path, std::ios::binary | std::ios::app) << ones;
    const int file = ::open(path.c_str(), O_RDONLY);
    data = static_cast<std::byte*>(::mmap(nullptr, size(), PROT_READ, MAP_PRIVATE, file, 0));
    ::close(file);
  }
  ~MappedWeights() { ::munmap(data, size()); }
  static std::size_t size() { return kExperts * kExpert; }

  LayerWeights weights() const {
    LayerWeights all;
    for (std::size_t e = 0; e < kExperts; ++e) {
      const auto matrix = [&](std::size_t i) {
        return WeightMatrix{.format = Formats::of<format::Bf16>(),
                            .rows = kWidth,
                            .cols = kWidth,
                            .codes = data + e * kExpert + i * kMatrix,
                            .row_stride = 2 * kWidth,
                            .col_stride = 2};
      };
      all.routed.push_back({.gate = matrix(0), .up = matrix(1), .down = matrix(2)});
    }
    all.files = {{.path = "weights", .data = data, .bytes = size()}};
    return all;
  }
};

LayerSpec spec() {
  const Format bf16 = Formats::of<format::Bf16>();
  return {.routed = {.hidden = kWidth,
                     .intermediate = kWidth,
                     .experts = kExperts,
                     .local_experts = kExperts,
                     .top_k = 1,
                     .formats = {bf16, bf16, bf16},
                     .activation = Activations::of<activation::Silu>()},
          .router = {.score = *Score::parse("softmax"), .experts = kExperts, .top_k = 1}};
}

TEST(LoadingMemory, PeaksAtThePackedSizePlusOneExpert) {
  const MappedWeights mapped;
  ASSERT_NE(mapped.data, MAP_FAILED);
  for (const Backend* backend : testing::usable_backends()) {
    if (backend->keeping.version == 0) continue;
    const Plan plan = small::plan_for(spec(), std::string(backend->name));
    if (testing::rounding_of(backend->name) != testing::Rounding::none && plan.chosen.empty())
      continue;  // has no bf16
    const LayerWeights weights = mapped.weights();
    ASSERT_EQ(::madvise(mapped.data, MappedWeights::size(), MADV_DONTNEED), 0);
    if (!reset_peak()) GTEST_SKIP() << "this system does not reset the mark";
    const std::size_t before = resident("VmRSS:");
    const Layer layer(plan, weights, {.executor = make_thread_team(2)});
    const std::size_t grown = resident("VmHWM:") - before;
    const auto packed = static_cast<std::size_t>(layer.packed_bytes());
    // An eighth: the sanitizers' shadow. 2 MB: the last huge page, and whatever else a process does.
    EXPECT_LE(grown, packed + kExpert + packed / 8 + (std::size_t{2} << 20)) << backend->name;
    EXPECT_GE(grown, packed * 9 / 10) << backend->name << ": nothing was measured";
  }
}

}  // namespace
}  // namespace sluice
