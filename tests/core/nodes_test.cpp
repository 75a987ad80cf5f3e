// SPDX-License-Identifier: Apache-2.0
// What Linux says of memory nodes, read from texts made up here and from this machine.
#include "core/nodes.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "gtest/gtest.h"

namespace sluice {
namespace {

using Cpus = std::vector<int>;
using Bytes = std::vector<std::int64_t>;

TEST(Nodes, CpuLists) {
  EXPECT_EQ(parse_cpu_list("0-3,8\n"), (Cpus{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), Cpus{5});
  EXPECT_EQ(parse_cpu_list(""), Cpus{});
  EXPECT_EQ(parse_cpu_list("\n"), Cpus{});
  EXPECT_EQ(parse_cpu_list("1,x"), Cpus{1});
  EXPECT_EQ(parse_cpu_list("3-"), Cpus{});
  EXPECT_EQ(parse_cpu_list("7-2"), Cpus{});
}

class NodesFolder : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = std::filesystem::path(::testing::TempDir()) / "sluice_nodes_test"; }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  std::filesystem::path folder_;
};

TEST_F(NodesFolder, NodesHaveTheProcessorsThatMayBeUsed) {
  write("online", "0-1,3\n");
  write("node0/cpulist", "0-1,4\n");
  write("node1/cpulist", "2-3\n");  // none of which this process may use
  write("node3/cpulist", "6\n");
  const std::vector<MemoryNode> nodes = nodes_below(folder_.string(), {1, 4, 6});
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].id, 0);
  EXPECT_EQ(nodes[0].cpus, (Cpus{1, 4}));
  EXPECT_EQ(nodes[1].id, 3);
  EXPECT_EQ(nodes[1].cpus, Cpus{6});
}

TEST_F(NodesFolder, ASystemThatSaysNothingIsOneNode) {
  const std::vector<MemoryNode> nodes = nodes_below(folder_.string(), {0, 2});
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].id, 0);
  EXPECT_EQ(nodes[0].cpus, (Cpus{0, 2}));
}

TEST(Nodes, OwnMemoryIsWhatNoFileIsBehind) {
  EXPECT_EQ(own_bytes_by_node("7f00 default anon=3 dirty=3 N0=2 N2=1 kernelpagesize_kB=4\n"
                              "7f10 prefer:0 anon=1 dirty=1 N0=1 kernelpagesize_kB=2048\n"
                              "7f20 default file=/lib/libc.so mapped=9 N0=9 kernelpagesize_kB=4\n"
                              "7f30 default stack anon=1 dirty=1 N1=1 kernelpagesize_kB=4\n"),
            (Bytes{8192 + (2 << 20), 4096, 4096}));
  EXPECT_EQ(own_bytes_by_node(std::string()), Bytes{});
}

TEST(Nodes, OfThisMachineHaveProcessors) {
  for (const MemoryNode& node : memory_nodes()) EXPECT_FALSE(node.cpus.empty()) << node.id;
}

/// The kernel's own count sees memory that was written, and not memory that was only asked for.
TEST(Nodes, TheKernelCountsWhatIsTouched) {
  const Bytes before = own_bytes_by_node();
  if (before.empty()) GTEST_SKIP() << "no /proc/self/numa_maps";
  const std::size_t size = std::size_t{64} << 20;
  const auto sum = [](const Bytes& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  };
  const auto buffer = std::make_unique_for_overwrite<unsigned char[]>(size);
  const std::int64_t asked = sum(own_bytes_by_node()) - sum(before);
  for (std::size_t i = 0; i < size; i += 4096) buffer[i] = 1;
  const std::int64_t touched = sum(own_bytes_by_node()) - sum(before);
  EXPECT_LT(asked, std::int64_t{16} << 20);  // sanitizers write an eighth
  EXPECT_GE(touched, static_cast<std::int64_t>(size));
}

TEST(Nodes, AThreadAndThoseItStartsStayOnTheirProcessors) {
  const MemoryNode node = memory_nodes().front();
  const Cpus one{node.cpus.back()};
  Cpus seen;
  std::thread([&] {
    ASSERT_TRUE(run_on(one));
    std::thread([&] { seen = memory_nodes().front().cpus; }).join();
  }).join();
  EXPECT_EQ(seen, one);
  EXPECT_EQ(memory_nodes().front().cpus, node.cpus) << "the caller has been pinned too";
  EXPECT_FALSE(run_on({}));
  EXPECT_FALSE(prefer_memory_of(-1));
}

}  // namespace
}  // namespace sluice
