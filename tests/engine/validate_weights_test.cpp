// SPDX-License-Identifier: Apache-2.0
// Views that are not what the spec promises. The error names the place.
#include <gtest/gtest.h>

#include <functional>

#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

class ValidateWeightsTest : public ::testing::Test {
 protected:
  void refused(const std::string& place, const std::function<void(LayerWeights&)>& change) const {
    LayerWeights weights = weights_;
    change(weights);
    try {
      validate(spec_, weights);
      ADD_FAILURE() << place << ": accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_EQ(error.info().code, "bad_weights");
      EXPECT_EQ(error.info().tensor, place) << error.what();
    }
  }

  const LayerSpec spec_ = small::spec();
  const LayerWeights weights_ = draw_weights(spec_, testing::Numbers::noisy, 1);
};

TEST_F(ValidateWeightsTest, AcceptsWhatTheSpecPromises) { EXPECT_NO_THROW(validate(spec_, weights_)); }

TEST_F(ValidateWeightsTest, NumberOfExperts) {
  refused("routed", [](LayerWeights& weights) { weights.routed.pop_back(); });
  refused("shared", [](LayerWeights& weights) { weights.shared.clear(); });
}

TEST_F(ValidateWeightsTest, Matrices) {
  refused("routed[7].down", [](LayerWeights& weights) { weights.routed[7].down = weights.routed[7].up; });
  refused("routed[2].gate", [](LayerWeights& weights) { weights.routed[2].gate->rows = 63; });
  refused("routed[2]", [](LayerWeights& weights) { weights.routed[2].gate.reset(); });
  refused("routed[0].up",
          [](LayerWeights& weights) { weights.routed[0].up.format = Formats::of<format::Nvfp4>(); });
  refused("routed[0].up", [](LayerWeights& weights) { weights.routed[0].up.codes = nullptr; });
  refused("routed[0].up", [](LayerWeights& weights) { weights.routed[0].up.scales.data = nullptr; });
  refused("routed[0].up", [](LayerWeights& weights) { weights.routed[0].up.scales.dtype = DType::f32; });
  refused("shared[0].up", [](LayerWeights& weights) { weights.shared[0].up.col_stride = 0; });
}

TEST(ValidateIntegerWeights, Parts) {
  LayerSpec spec = small::spec();
  const Format int4 = Formats::of<format::Int4>();
  const Grouping grouping{.columns = 32, .zero_points = true, .act_order = true};
  spec.routed.formats = {int4, int4, int4, grouping, grouping, grouping};
  const LayerWeights weights = draw_weights(spec, testing::Numbers::noisy, 1);
  EXPECT_NO_THROW(validate(spec, weights));
  const auto refused = [&](const char* why, const std::function<void(WeightMatrix&)>& change) {
    LayerWeights changed = weights;
    change(changed.routed[3].up);
    try {
      validate(spec, changed);
      ADD_FAILURE() << why << ": accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.info().tensor, "routed[3].up");
      EXPECT_NE(error.info().why.find(why), std::string::npos) << error.info().why;
    }
  };
  refused("it is int4 g64, zero points, act-order, the spec says int4 g32",
          [](WeightMatrix& matrix) { matrix.integers.grouping.columns = 64; });
  refused("zero points: missing", [](WeightMatrix& matrix) { matrix.integers.zeros = nullptr; });
  refused("order of columns: missing", [](WeightMatrix& matrix) { matrix.integers.column_groups = nullptr; });
  std::vector<std::int32_t> order(96, 0);
  const auto ordered = [&](WeightMatrix& matrix) {
    matrix.integers.column_groups = reinterpret_cast<const std::byte*>(order.data());
  };
  order[95] = 3;
  refused("column 95 is in group 3 of 3", ordered);
  order[95] = -1;
  refused("column 95 is in group -1 of 3", ordered);

  spec.routed.formats = {Formats::of<format::Int3>(), Formats::of<format::Int3>(),
                         Formats::of<format::Int3>()};
  const LayerWeights narrow = draw_weights(spec, testing::Numbers::noisy, 1);
  LayerWeights changed = narrow;
  changed.routed[0].up.integers.codes.packing = Packing::awq;
  EXPECT_THROW(validate(spec, changed), Error) << "AWQ packs 4 bits";
}

TEST_F(ValidateWeightsTest, Biases) {
  refused("routed[1].gate_bias", [](LayerWeights& weights) { weights.routed[1].gate_bias = {}; });
  refused("routed[1].up_bias", [](LayerWeights& weights) { weights.routed[1].up_bias.size = 63; });
  refused("routed[1].down_bias",
          [](LayerWeights& weights) { weights.routed[1].down_bias.dtype = DType::i32; });
  refused("shared_gate", [](LayerWeights& weights) { weights.shared_gate = {}; });

  LayerSpec without = spec_;
  without.routed.down_bias = false;
  EXPECT_THROW(validate(without, weights_), Error) << "a bias that the spec knows nothing of";
}

TEST_F(ValidateWeightsTest, Router) {
  refused("router.weight", [](LayerWeights& weights) { weights.router.weight->rows = 7; });
  refused("router.weight", [](LayerWeights& weights) { weights.router.weight = weights.routed[0].up; });
  refused("router.bias", [](LayerWeights& weights) { weights.router.bias = {}; });
  refused("router.selection_bias", [](LayerWeights& weights) { weights.router.selection_bias.size = 9; });
  refused("router.table", [](LayerWeights& weights) { weights.router.table = {1, 2, 3}; });
}

TEST_F(ValidateWeightsTest, RouterTable) {
  LayerSpec by_id = spec_;
  by_id.router.by_token_id = true;
  LayerWeights weights = weights_;
  EXPECT_THROW(validate(by_id, weights), Error) << "missing";
  weights.router.table = {0, 1, 2, 5, 6, 7};
  EXPECT_NO_THROW(validate(by_id, weights));
  weights.router.table = {0, 1, 2, 5, 6};
  EXPECT_THROW(validate(by_id, weights), Error) << "half a row";
  weights.router.table = {0, 1, 8};
  EXPECT_THROW(validate(by_id, weights), Error) << "no such expert";
}

TEST_F(ValidateWeightsTest, ARouterMayBeLeftOutWhole) {
  LayerWeights weights = weights_;
  weights.router = {};
  EXPECT_NO_THROW(validate(spec_, weights));
}

}  // namespace
}  // namespace sluice
