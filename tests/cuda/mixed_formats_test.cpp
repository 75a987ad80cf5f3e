// SPDX-License-Identifier: Apache-2.0
// Experts whose down matrix has another format than gate and up: each product is packed as if it were alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/bits.h"
#include "experts/backend.h"
#include "format/bf16.h"
#include "testing/draw.h"
#include "testing/drawn_layer.h"
#include "tests/cuda/repacked.h"

namespace sluice {
extern const Backend kCudaMma, kCudaDecode, kCudaRounded;
}  // namespace sluice

namespace sluice::cuda {
namespace {

constexpr int kHidden = 256, kIntermediate = 512;

Grouping grouping_of(Format format, bool act_order = false) {
  return is_integer(format) ? Grouping{.columns = 64, .zero_points = true, .act_order = act_order}
                            : Grouping{};
}

ExpertsSpec mixed_spec(Format up, Format down, bool act_order = false) {
  ExpertsSpec spec = spec_of(up, kHidden, kIntermediate, true);
  spec.formats.gate_grouping = spec.formats.up_grouping = grouping_of(up);
  spec.formats.down = down;
  spec.formats.down_grouping = grouping_of(down, act_order);
  return spec;
}

LayerWeights drawn(const ExpertsSpec& spec) {
  return testing::draw_weights(layer_of(spec), testing::Numbers::noisy, 3);
}

/// All of a product: blocks, factors and biases.
std::vector<std::byte> bytes_of(const StripsLayout& product, const std::vector<std::byte>& memory) {
  const std::int64_t end = product.bias + std::int64_t{product.strips} * kStripRows * 4;
  return {memory.begin() + product.blocks, memory.begin() + end};
}

std::vector<Format> formats() { return formats_where(has_storage); }

TEST(MixedFormats, EachProductIsPackedAsItIsAlone) {
  const std::vector<Format> all = formats();
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const Format down : {all[(i + 1) % all.size()], all[(i + 5) % all.size()]}) {
      const Format up = all[i];
      SCOPED_TRACE(::testing::Message() << up.str() << " and " << down.str());
      const ExpertsSpec spec = mixed_spec(up, down);
      const LayerWeights weights = drawn(spec), like_up = drawn(mixed_spec(up, up)),
                         like_down = drawn(mixed_spec(down, down));
      const ExpertWeights& expert = weights.routed.front();
      ExpertWeights first = like_up.routed.front(), second = like_down.routed.front();
      first.gate = expert.gate;
      first.up = expert.up;
      first.gate_bias = expert.gate_bias;
      first.up_bias = expert.up_bias;
      second.down = expert.down;
      second.down_bias = expert.down_bias;
      const std::vector<std::byte> memory = repacked(spec, expert);
      const ExpertLayout layout = expert_layout(spec);
      EXPECT_EQ(layout.up.storage, storage_of(up, grouping_of(up)));
      EXPECT_EQ(layout.down.storage, storage_of(down, grouping_of(down)));
      // Rows of gate and up follow an order of down's columns.
      if (has_own_order(layout.down.storage) == has_own_order(layout.up.storage)) {
        EXPECT_EQ(bytes_of(layout.up, memory),
                  bytes_of(expert_layout(mixed_spec(up, up)).up, repacked(mixed_spec(up, up), first)));
      }
      EXPECT_EQ(bytes_of(layout.down, memory), bytes_of(expert_layout(mixed_spec(down, down)).down,
                                                        repacked(mixed_spec(down, down), second)));
      if (HasFailure()) return;
    }
}

std::vector<std::pair<Format, Format>> pairs_with(std::initializer_list<Format> downs) {
  std::vector<std::pair<Format, Format>> all;
  for (const Format up : formats())
    for (const Format down : downs) all.emplace_back(up, down);
  return all;
}

/// Whatever gate and up are stored as.
TEST(MixedFormats, RowsOfGateAndUpFollowTheOrderOfDown) {
  for (const auto& [up, down] : pairs_with({Formats::of<format::Int4>(), Formats::of<format::Q6K>()})) {
    const ExpertsSpec spec = mixed_spec(up, down, true);
    SCOPED_TRACE(::testing::Message() << up.str() << " and " << down.str());
    const LayerWeights weights = drawn(spec);
    const ExpertWeights& expert = weights.routed.front();
    const std::vector<std::int32_t> order = ExpertOrders(spec, expert).down.columns;
    ASSERT_EQ(std::ssize(order), kIntermediate);
    ASSERT_FALSE(std::ranges::is_sorted(order)) << "an order that is none";
    const ExpertLayout layout = expert_layout(spec, packed_columns(spec, weights.routed));
    const std::vector<std::byte> memory = repacked(spec, expert);
    const auto number = [](const VectorView& vector, int i) {
      return format::bf16_to_float(load<std::uint16_t>(vector.data + i * vector.stride));
    };
    const auto bias = [&](int strip, int r) {
      return load<float>(memory.data() + layout.up.bias + 4 * (kStripRows * strip + r));
    };
    for (int k = 0; k < kIntermediate; ++k) {
      const std::int32_t row = order[static_cast<std::size_t>(k)];
      ASSERT_EQ(bias(k / 8, k % 8), number(expert.gate_bias, row)) << k;
      ASSERT_EQ(bias(k / 8, 8 + k % 8), number(expert.up_bias, row)) << k;
    }
  }
}

/// Gate and up share strips, so they have one storage: what cards refuse is named apart.
TEST(MixedFormats, AGateOfItsOwnIsAnotherFeature) {
  ExpertsSpec spec = mixed_spec(Formats::of<format::Q4K>(), Formats::of<format::Q6K>());
  for (const Backend* backend : {&kCudaMma, &kCudaDecode, &kCudaRounded}) {
    spec.formats.gate = spec.formats.up;
    EXPECT_TRUE(needs(spec).minus(backend->can.features).empty()) << backend->name;
    spec.formats.gate = Formats::of<format::Q5K>();
    EXPECT_EQ(needs(spec).minus(backend->can.features).str(), "mixed_gate_up") << backend->name;
  }
}

}  // namespace
}  // namespace sluice::cuda
