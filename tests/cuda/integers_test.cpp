// SPDX-License-Identifier: Apache-2.0
// Integers as the kernels of a card decode them, against the format's own decoder: every code and zero point,
// every width, grouping, layout of a file and type of scales, and orders of columns that no quantiser agrees
// on.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/bits.h"
#include "format/integers.h"
#include "testing/draw.h"
#include "testing/drawn_layer.h"
#include "tests/cuda/integer_rows.h"
#include "tests/cuda/repacked.h"

namespace sluice::cuda {
namespace {

using format::Encoded;
using format::IntegerFile;
using format::IntegerRecipe;

TEST(UnpackIntegers, EveryCodeAndZeroPoint) {
  for (std::uint32_t zero = 0; zero < 256; ++zero)
    for (std::uint32_t code = 0; code < 256; ++code) {
      const double want = double(code) - double(zero);
      for (int index = 0; index < 2; ++index)
        for (int half = 0; half < 2; ++half)
          ASSERT_EQ(value<8>(code << (8 * index + 16 * half), index, zero, half) * kIntegerBack, want);
      if (code > 15) continue;
      for (int index = 0; index < 4; ++index)
        for (int half = 0; half < 2; ++half)
          ASSERT_EQ(value<4>(code << (4 * index + 16 * half), index, zero, half) * kIntegerBack, want);
    }
}

ExpertsSpec integer_spec(Format format, const Grouping& grouping, std::pair<int, int> shape, bool gated) {
  ExpertsSpec spec = spec_of(format, shape.first, shape.second, gated);
  spec.gate_up_bias = spec.down_bias = false;
  if (gated) spec.formats.gate_grouping = grouping;
  spec.formats.up_grouping = spec.formats.down_grouping = grouping;
  return spec;
}

std::vector<Format> integers() {
  return formats_where([](Format format) { return is_integer(format); });
}

TEST(RepackIntegers, EveryWidthAndGroupingComesBackExactly) {
  for (const Format format : integers()) {
    ASSERT_TRUE(has_storage(format));
    int turn = geometry(format).code_bits;
    for (const int columns : {0, 32, 64, 96, 128, 256})
      for (const bool zeros : {false, true}) {
        const Grouping grouping{.columns = columns, .zero_points = zeros, .act_order = (turn & 1) == 0};
        constexpr std::pair<int, int> kShapes[] = {{288, 96}, {256, 320}, {177, 21}};
        const ExpertsSpec spec = integer_spec(format, grouping, kShapes[turn % 3], turn % 4 != 0);
        turn += zeros ? 2 : 1;  // the next group meets zero points and orders in the other way
        SCOPED_TRACE(::testing::Message()
                     << storage_text(format, grouping) << " " << spec.hidden << "x" << spec.intermediate);
        const LayerWeights weights = testing::draw_weights(layer_of(spec), testing::Numbers::noisy, 3);
        expect_round_trip(spec, weights.routed.front());
        // What is asked for before anything is seen is enough for orders of whole groups.
        EXPECT_EQ(expert_layout(spec, packed_columns(spec, weights.routed)).bytes, expert_layout(spec).bytes);
        if (::testing::Test::HasFailure()) return;
      }
  }
}

/// An expert whose matrices a test has made.
struct Made {
  Encoded gate, up, down;

  Made(Format format, const IntegerRecipe& recipe, int hidden, int intermediate)
      : gate(make_integers(format, recipe, intermediate, hidden)),
        up(make_integers(format, recipe, intermediate, hidden)),
        down(make_integers(format, recipe, hidden, intermediate)) {
    testing::Draw draw(5);
    for (Encoded* encoded : {&gate, &up, &down}) {
      const WeightMatrix& m = encoded->matrix;
      const int most = 1 << format::integer_bits(m);
      for (std::int64_t r = 0; r < m.rows; ++r) {
        for (std::int64_t c = 0; c < m.cols; ++c)
          set_code(*encoded, r, c, static_cast<unsigned>(draw.below(most)));
        for (std::int64_t g = 0; g < format::groups_of_row(m) && recipe.grouping.zero_points; ++g)
          set_zero(*encoded, r, g, static_cast<unsigned>(draw.below(most)));
      }
    }
  }
  ExpertWeights expert() const { return {.gate = gate.matrix, .up = up.matrix, .down = down.matrix}; }
};

TEST(RepackIntegers, EveryLayoutOfAFile) {
  for (const IntegerFile file :
       {IntegerFile::rows, IntegerFile::padded_rows, IntegerFile::gptq, IntegerFile::awq})
    for (const Format format : {Formats::of<format::Int4>(), Formats::of<format::Int8>()})
      for (const int columns : {32, 128}) {
        const IntegerRecipe recipe{.grouping = {.columns = columns, .zero_points = true}, .file = file};
        if (!can_lay_out(format, recipe, 64, 256)) continue;
        const Made made(format, recipe, 256, 64);
        expect_round_trip(integer_spec(format, recipe.grouping, {256, 64}, true), made.expert());
        if (::testing::Test::HasFailure()) return;
      }
}

/// Numbers of either sign and all of their bits.
void draw_scales(Encoded& encoded, DType dtype) {
  testing::Draw draw(9);
  WeightMatrix& m = encoded.matrix;
  const std::int64_t groups = format::groups_of_row(m), bytes = dtype == DType::f32 ? 4 : 2;
  encoded.scales.assign(static_cast<std::size_t>(m.rows * groups * bytes), std::byte{0});
  m.scales = {encoded.scales.data(), dtype, groups * bytes, bytes};
  for (std::int64_t i = 0; i < m.rows * groups; ++i) {
    std::byte* at = encoded.scales.data() + i * bytes;
    const auto bits = static_cast<std::uint32_t>(draw.bits());
    if (dtype == DType::f32)
      store(at, (bits & 0x83FFFFFFu) | 0x3C000000u);
    else
      store(at, static_cast<std::uint16_t>(dtype == DType::f16 ? (bits & 0x8BFFu) | 0x2000u
                                                               : (bits & 0x81FFu) | 0x3C00u));
  }
}

TEST(RepackIntegers, EveryTypeOfScales) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
    for (const int columns : {0, 32, 128}) {
      const IntegerRecipe recipe{.grouping = {.columns = columns, .zero_points = true}};
      Made made(Formats::of<format::Int4>(), recipe, 288, 64);
      for (Encoded* encoded : {&made.gate, &made.up, &made.down}) draw_scales(*encoded, dtype);
      expect_round_trip(integer_spec(Formats::of<format::Int4>(), recipe.grouping, {288, 64}, true),
                        made.expert());
    }
}

/// Which group a column is of, drawn: no two orders alike, and no group as large as it says.
void shuffle_groups(Encoded& encoded, std::uint64_t seed) {
  testing::Draw draw(seed);
  const std::int64_t groups = format::groups_of_row(encoded.matrix);
  for (std::int64_t c = 0; c < encoded.matrix.cols; ++c)
    store(encoded.column_groups.data() + 4 * c, static_cast<std::int32_t>(draw.below(groups)));
}

TEST(RepackIntegers, GateAndUpInOrdersOfTheirOwn) {
  for (const int columns : {32, 128}) {
    const IntegerRecipe recipe{.grouping = {.columns = columns, .zero_points = true, .act_order = true}};
    const ExpertsSpec spec = integer_spec(Formats::of<format::Int4>(), recipe.grouping, {256, 160}, true);
    Made made(Formats::of<format::Int4>(), recipe, 256, 160);
    shuffle_groups(made.gate, 1);
    shuffle_groups(made.up, 2);
    const ExpertWeights expert = made.expert();
    const PackedColumns seen = packed_columns(spec, {&expert, 1});
    EXPECT_GE(seen.up, 512);
    EXPECT_EQ(seen.down, 160);
    expect_round_trip(spec, expert);
  }
}

TEST(RepackIntegers, GroupsOfOtherSizesThanTheySay) {
  for (const int columns : {32, 128}) {
    const IntegerRecipe recipe{.grouping = {.columns = columns, .act_order = true}};
    const ExpertsSpec spec = integer_spec(Formats::of<format::Int8>(), recipe.grouping, {256, 288}, true);
    Made made(Formats::of<format::Int8>(), recipe, 256, 288);
    shuffle_groups(made.gate, 1);
    shuffle_groups(made.up, 1);
    shuffle_groups(made.down, 3);
    const ExpertWeights expert = made.expert();
    EXPECT_GT(packed_columns(spec, {&expert, 1}).down, 288);
    expect_round_trip(spec, expert);
  }
}

/// A layer's experts have the columns of the widest.
TEST(RepackIntegers, AnExpertIsPaddedToItsNeighbours) {
  const IntegerRecipe recipe{.grouping = {.columns = 32, .act_order = true}};
  const ExpertsSpec spec = integer_spec(Formats::of<format::Int4>(), recipe.grouping, {128, 96}, true);
  Made wide(Formats::of<format::Int4>(), recipe, 128, 96);
  const Made plain(Formats::of<format::Int4>(), recipe, 128, 96);
  shuffle_groups(wide.up, 1);
  const ExpertWeights both[] = {plain.expert(), wide.expert()};
  const ExpertLayout layout = expert_layout(spec, packed_columns(spec, both));
  ASSERT_GT(layout.gathered, 256);
  std::vector<std::byte> memory(static_cast<std::size_t>(layout.bytes), std::byte{0xA5});
  repack(spec, layout, both[0], memory.data(), *make_thread_team(1));
  const auto* order = reinterpret_cast<const std::int32_t*>(memory.data() + layout.order);
  for (int r : {0, 9}) {
    const std::vector<double> row =
        in_order(read_row(layout.up, memory.data(), 0, r), {order, order + layout.gathered}, spec.hidden);
    const std::int32_t channel = ExpertOrders(spec, both[0]).down.columns[static_cast<std::size_t>(r % 8)];
    expect_row(r < 8 ? *both[0].gate : both[0].up, channel, row);
  }
}

/// For adapters, whose matrices have the channels as they are.
TEST(RepackIntegers, LayersThatTakeAdaptersHaveTheOrderOfTheChannels) {
  const IntegerRecipe recipe{.grouping = {.columns = 32, .act_order = true}};
  ExpertsSpec spec = integer_spec(Formats::of<format::Int4>(), recipe.grouping, {128, 96}, true);
  Made wide(Formats::of<format::Int4>(), recipe, 128, 96);
  const Made plain(Formats::of<format::Int4>(), recipe, 128, 96);
  shuffle_groups(wide.down, 1);
  const ExpertWeights both[] = {plain.expert(), wide.expert()};
  const PackedColumns columns = packed_columns(spec, both);
  EXPECT_EQ(expert_layout(spec, columns).channels, 0);
  spec.lora_rank = 4;
  const ExpertLayout layout = expert_layout(spec, columns);
  ASSERT_NE(layout.channels, 0);
  // What is asked for before anything is seen is enough for orders of whole groups.
  const ExpertWeights only_plain[] = {plain.expert()};
  EXPECT_EQ(expert_layout(spec).bytes, expert_layout(spec, packed_columns(spec, only_plain)).bytes);
  for (const ExpertWeights& expert : both) {
    std::vector<std::byte> memory(static_cast<std::size_t>(layout.bytes), std::byte{0xA5});
    repack(spec, layout, expert, memory.data(), *make_thread_team(1));
    std::vector<std::int32_t> want = ExpertOrders(spec, expert).down.columns;
    want.resize(static_cast<std::size_t>(layout.up.rows), -1);
    const auto* channels = reinterpret_cast<const std::int32_t*>(memory.data() + layout.channels);
    EXPECT_EQ(std::vector<std::int32_t>(channels, channels + layout.up.rows), want);
  }
}

TEST(IntegerLayout, SizesOfABlock) {
  EXPECT_EQ(block_bytes(Storage::int4_g128), 1024 + 80);
  EXPECT_EQ(block_bytes(Storage::int4_g32), 1024 + 320);
  EXPECT_EQ(block_bytes(Storage::int8_g128), 2048 + 80);
  EXPECT_EQ(block_bytes(Storage::int8_g32), 2048 + 320);
  EXPECT_EQ(storage_of(Formats::of<format::Int3>(), {.columns = 64}), Storage::int4_g32);
  EXPECT_EQ(storage_of(Formats::of<format::Int4>(), {.columns = 0}), Storage::int4_g128);
  EXPECT_EQ(storage_of(Formats::of<format::Int5>(), {.columns = 256}), Storage::int8_g128);
}

}  // namespace
}  // namespace sluice::cuda
