// SPDX-License-Identifier: Apache-2.0
#include "routing/group.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace sluice {
namespace {

using Ints = std::vector<std::int32_t>;

struct Grouped {
  Ints offsets;
  Ints slots;  // only the used ones
};

Grouped group(const Ints& ids, int top_k, const Ints& map, int experts, int local_experts) {
  constexpr std::size_t kGuard = 16;  // behind either output, where nothing may be written
  const std::size_t starts = static_cast<std::size_t>(local_experts) + 1;
  Grouped out{Ints(starts + kGuard, 77), Ints(ids.size() + kGuard, 77)};
  const Routing routing{.ids = ids.data(), .tokens = static_cast<int>(ids.size()) / top_k, .top_k = top_k};
  const int used = group_by_expert(routing, map, experts, std::span(out.offsets).first(starts),
                                   std::span(out.slots).first(ids.size()));
  const auto untouched = [](const Ints& buffer, std::size_t size) {
    return Ints(buffer.begin() + static_cast<std::ptrdiff_t>(size), buffer.end()) == Ints(kGuard, 77);
  };
  EXPECT_TRUE(untouched(out.offsets, starts) && untouched(out.slots, ids.size()));
  out.offsets.resize(starts);
  EXPECT_EQ(used, out.offsets.back());
  out.slots.resize(static_cast<std::size_t>(used));
  return out;
}

TEST(Group, SlotsOfAnExpertAreAscending) {
  const Grouped got = group({2, 0, 0, 2, 1, 2}, 2, {}, 3, 3);
  EXPECT_EQ(got.offsets, (Ints{0, 2, 3, 6}));
  EXPECT_EQ(got.slots, (Ints{1, 2, 4, 0, 3, 5}));
}

TEST(Group, ExpertsWithNoneAndWithAll) {
  const Grouped got = group({1, 1, 1, 1}, 1, {}, 4, 4);
  EXPECT_EQ(got.offsets, (Ints{0, 0, 4, 4, 4}));
  EXPECT_EQ(got.slots, (Ints{0, 1, 2, 3}));
}

TEST(Group, IdsThatAreNoExpertsAreLeftOut) {
  const Grouped got = group({-1, 0, 3, 1, -7, 1 << 30}, 2, {}, 3, 3);
  EXPECT_EQ(got.offsets, (Ints{0, 1, 2, 2}));
  EXPECT_EQ(got.slots, (Ints{1, 3}));
}

TEST(Group, ARepeatedIdGetsBothSlots) { EXPECT_EQ(group({1, 1}, 2, {}, 2, 2).slots, (Ints{0, 1})); }

TEST(Group, TheMapSaysWhoIsHere) {
  const Grouped got = group({0, 1, 2, 3, 2, 0}, 2, {-1, 1, 0, -1}, 4, 2);
  EXPECT_EQ(got.offsets, (Ints{0, 2, 3}));
  EXPECT_EQ(got.slots, (Ints{2, 4, 1}));
}

TEST(Group, AMapThatPointsNowhereWritesNowhere) {
  const Grouped got = group({0, 1, 2}, 1, {5, 0, 2}, 3, 2);
  EXPECT_EQ(got.offsets, (Ints{0, 1, 1}));
  EXPECT_EQ(got.slots, (Ints{1}));
}

TEST(Group, NoTokens) {
  const Grouped got = group({}, 4, {}, 3, 3);
  EXPECT_EQ(got.offsets, (Ints{0, 0, 0, 0}));
}

TEST(Group, EverySlotOnceOnRandomIds) {
  std::mt19937 draw(3);
  Ints ids(4 * 500);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(draw() % 40) - 4;
  const Grouped got = group(ids, 4, {}, 32, 32);
  std::size_t used = 0;
  for (const std::int32_t id : ids) used += id >= 0 && id < 32 ? 1 : 0;
  EXPECT_EQ(got.slots.size(), used);
  for (int e = 0; e < 32; ++e)
    for (std::int32_t i = got.offsets[static_cast<std::size_t>(e)];
         i < got.offsets[static_cast<std::size_t>(e) + 1]; ++i) {
      EXPECT_EQ(ids[static_cast<std::size_t>(got.slots[static_cast<std::size_t>(i)])], e);
      if (i > got.offsets[static_cast<std::size_t>(e)]) {
        EXPECT_LT(got.slots[static_cast<std::size_t>(i) - 1], got.slots[static_cast<std::size_t>(i)]);
      }
    }
}

TEST(LocalExpert, IdentityMapAndElsewhere) {
  EXPECT_EQ(local_expert(2, {}, 3), 2);
  EXPECT_EQ(local_expert(3, {}, 3), -1);
  EXPECT_EQ(local_expert(-1, {}, 3), -1);
  const Ints map = {-1, 0};
  EXPECT_EQ(local_expert(0, map, 2), -1);
  EXPECT_EQ(local_expert(1, map, 2), 0);
}

}  // namespace
}  // namespace sluice
