// SPDX-License-Identifier: Apache-2.0
#include "engine/memory.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Memory, MemAvailable) {
  EXPECT_EQ(parse_mem_available(
                "MemTotal:       24576000 kB\nMemFree:  100 kB\nMemAvailable:   2048 kB\nBuffers: 1 kB\n"),
            2048 * 1024);
  EXPECT_EQ(parse_mem_available("MemTotal: 1 kB\nMemFree: 1 kB\n"), std::nullopt) << "a kernel before 3.14";
  EXPECT_EQ(parse_mem_available(""), std::nullopt);
  EXPECT_EQ(parse_mem_available("MemAvailable: lots\n"), std::nullopt);
}

TEST(Memory, CgroupGivesItsPageCacheBack) {
  const char* const stat = "anon 300\nfile 500\ninactive_file 100\nactive_file 250\n";
  EXPECT_EQ(parse_cgroup_left("1000\n", "700\n", stat), 1000 - (700 - 350));
  EXPECT_EQ(parse_cgroup_left("1000\n", "700\n", ""), 300);
  EXPECT_EQ(parse_cgroup_left("1000\n", "1200\n", ""), 0) << "never negative";
  EXPECT_EQ(parse_cgroup_left("1000\n", "200\n", stat), 1000) << "cache counted twice is not memory gained";
}

TEST(Memory, NoLimit) {
  EXPECT_EQ(parse_cgroup_left("max\n", "700\n", ""), std::nullopt);
  EXPECT_EQ(parse_cgroup_left("9223372036854771712\n", "700\n", ""), std::nullopt) << "version 1";
  EXPECT_EQ(parse_cgroup_left("", "", ""), std::nullopt);
}

TEST(Memory, ThisMachineHasSome) {
  const auto available = available_memory();
  ASSERT_TRUE(available.has_value());
  EXPECT_GT(*available, 1 << 20);
}

TEST(Memory, BytesAreDecimal) {
  EXPECT_EQ(bytes_text(13'220'000'000), "13.2 GB");
  EXPECT_EQ(bytes_text(1'500'000), "1.5 MB");
  EXPECT_EQ(bytes_text(0), "0.0 kB");
}

}  // namespace
}  // namespace sluice
