// SPDX-License-Identifier: Apache-2.0
// Section D of the reports: scales. Activations are not quantised here, so what goes wrong with their scales
// elsewhere is asserted as not mattering: decision 016.
#include <algorithm>
#include <cmath>
#include <limits>

#include "sluice/error.h"
#include "sluice/lint.h"
#include "testing/draw.h"
#include "testing/drawn_layer.h"
#include "tests/reports/model.h"
#include "tests/reports/rows.h"
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInfinity = std::numeric_limits<float>::infinity();
const std::string kModelopt = "layers.1.ffn.experts.2.", kCompressed = "model.layers.0.mlp.experts.2.";

double first_number(const WeightMatrix& matrix) {
  std::vector<double> row(static_cast<std::size_t>(matrix.cols));
  decode_row(matrix, 0, row.data());
  return row[0];
}

/// Every number of every routed expert, as bits.
std::vector<float> numbers_of(const LayerWeights& weights) {
  std::vector<float> all;
  for (const ExpertWeights& expert : weights.routed)
    for (const WeightMatrix* matrix : {&*expert.gate, &expert.up, &expert.down}) {
      std::vector<float> row(static_cast<std::size_t>(matrix->cols));
      for (std::int64_t r = 0; r < matrix->rows; r += 17) {
        decode_row(*matrix, r, row.data());
        all.insert(all.end(), row.begin(), row.end());
      }
    }
  return all;
}

/// How many warnings, or worse, the lint has of a second scale on the wrong side of one.
int on_the_wrong_side(const Checkpoint& model) {
  const auto threads = make_thread_team(2);
  const LintReport report = lint(model, *threads);
  return static_cast<int>(std::ranges::count_if(report.findings, [](const Finding& one) {
    return one.code == "second_scale_above_one" && one.severity != Severity::note;
  }));
}

/// Either maker's number in the other's file: a factor of 3584 in place of 1 / 3584.
void expect_wrong_sides_found() {
  for (const char* name : {"deepseek_v4_nvfp4", "qwen3_moe_ct_nvfp4"}) {
    const Edited good(fixture(name));
    EXPECT_EQ(on_the_wrong_side(*good), 0) << name;
  }
  const Edited modelopt(fixture("deepseek_v4_nvfp4"),
                        [](auto& m) { m.template set<float>(kModelopt + "w1.weight_scale_2", 0, 3584); });
  EXPECT_EQ(on_the_wrong_side(*modelopt), 1);
  const Edited compressed(fixture("qwen3_moe_ct_nvfp4"), [](auto& m) {
    m.template set<float>(kCompressed + "gate_proj.weight_global_scale", 0, 0.00027901786f);
  });
  EXPECT_EQ(on_the_wrong_side(*compressed), 1);
}

TEST(Reports, B35_OneMakerMultipliesAndTheOtherDivides) {
  const Edited modelopt(fixture("deepseek_v4_nvfp4"), [](auto& m) {
    m.template set<std::uint8_t>(kModelopt + "w1.weight", 0, 0x07);        // 6
    m.template set<std::uint8_t>(kModelopt + "w1.weight_scale", 0, 0x7E);  // 448
    m.template set<float>(kModelopt + "w1.weight_scale_2", 0, 0.00027901786f);
  });
  const LayerWeights theirs = modelopt->weights(1);
  EXPECT_NEAR(first_number(*theirs.routed[2].gate), 0.75, 1e-7);
  const Edited compressed(fixture("qwen3_moe_ct_nvfp4"), [](auto& m) {
    m.template set<std::uint8_t>(kCompressed + "gate_proj.weight_packed", 0, 0x07);
    m.template set<std::uint8_t>(kCompressed + "gate_proj.weight_scale", 0, 0x7E);
    m.template set<float>(kCompressed + "gate_proj.weight_global_scale", 0, 3584);
  });
  const LayerWeights others = compressed->weights(0);
  EXPECT_NEAR(first_number(*others.routed[2].gate), 0.75, 1e-7);
  expect_wrong_sides_found();
}

TEST(Reports, B36_GateAndUpHaveSecondScalesOfTheirOwn) {
  Expert expert = toy_expert({{1, 1}});
  Toy toy = make(spec_of(kNvfp4, kSilu, {}, {.experts = 2}), {expert, expert});
  auto six = shared(matrix(kNvfp4, {128, 128}, {{0, 0, 1}}));
  put_code(*six, 0, 0, 0x7);  // 6
  keep(toy, six);
  for (ExpertWeights& weights : toy.weights.routed) weights.gate = weights.up = six->matrix;
  const Toy equal = toy;
  toy.weights.routed[0].up.second_scale = 0.25f;
  Call to_second = one_hot(128);
  to_second.ids = {1};
  for (const Backend* backend : fitting(toy.spec)) {
    EXPECT_TRUE(near(run(*backend, toy, one_hot(128)).experts[0], 8.9777)) << backend->name;
    EXPECT_TRUE(near(run(*backend, equal, one_hot(128)).experts[0], 35.911)) << backend->name;
    EXPECT_EQ(run(*backend, toy, to_second), run(*backend, equal, to_second)) << backend->name;
  }
  const Edited model(fixture("deepseek_v4_nvfp4"), [](auto& m) {
    m.template set<float>(kModelopt + "w1.weight_scale_2", 0, 0.5f);
    m.template set<float>(kModelopt + "w3.weight_scale_2", 0, 0.125f);
  });
  const LayerWeights weights = model->weights(1);
  EXPECT_EQ(weights.routed[2].gate->second_scale, 0.5f);
  EXPECT_EQ(weights.routed[2].up.second_scale, 0.125f);
}

TEST(Reports, B38_AnExpertWithoutAnInputScaleIsLikeTheOthers) {
  const Edited whole(fixture("deepseek_v4_nvfp4"));
  const auto without_one = [](auto& m) {
    for (const char* matrix : {"w1", "w2", "w3"}) {
      const std::string name = kModelopt + matrix + ".input_scale";
      m.remove(name);
      const std::size_t at = m.index.find("\"" + name + "\"");
      m.index.erase(at, m.index.find(',', at) + 1 - at);
    }
  };
  const Edited lacking(fixture("deepseek_v4_nvfp4"), without_one);
  EXPECT_EQ(numbers_of(lacking->weights(1)), numbers_of(whole->weights(1)));
  for (const float bad : {0.0f, -1.0f, kNan, kInfinity})
    EXPECT_EQ(refused(
                  [&] {
                    Edited(fixture("deepseek_v4_nvfp4"),
                           [&](auto& m) { m.template set<float>(kModelopt + "w2.weight_scale_2", 0, bad); });
                  },
                  {"layers.1.ffn.experts.2.w2.weight_scale_2"})
                  .substr(0, 6),
              "scale_");
}

TEST(Reports, B39_WeightOnlyMeansThatNoActivationScaleIsRead) {
  expect_rows(kSilu, {}, {{20, 15, 300}, {24, 16, 384}});
  const Edited model(fixture("qwen3_moe_ct_nvfp4"));  // has none
  const LayerSpec spec = model->spec(0);
  const Toy toy{.spec = spec, .weights = model->weights(0)};
  const Call call = draw_call(spec, 3, 2);
  const std::vector<float> definition = run(*reference(), toy, call).experts;
  EXPECT_GT(norm(definition), 0);
  for (const Backend* backend : fitting(spec))
    EXPECT_LT(rel_l2(run(*backend, toy, call).experts, definition), 1e-2) << backend->name;
}

TEST(Reports, B41_NoActivationScaleIsMissing) {
  const LayerSpec spec =
      spec_of(kNvfp4, kSilu, {}, {.hidden = 96, .intermediate = 160, .experts = 4, .top_k = 2});
  Toy toy{.spec = spec, .weights = testing::draw_weights(spec, testing::Numbers::noisy, 3)};
  for (ExpertWeights& expert : toy.weights.routed)
    for (WeightMatrix* matrix : {&*expert.gate, &expert.up, &expert.down}) matrix->second_scale = 1;
  // Numbers of size 1, and numbers that a fixed activation scale would not hold.
  for (const float size : {1.0f, 2688.0f, 1.0f / 2688}) {
    Call call = draw_call(spec, 5, 11);
    const float most = std::ranges::max(call.hidden, {}, [](float v) { return std::abs(v); });
    for (float& value : call.hidden) value *= size / std::abs(most) / 448;
    const std::vector<float> definition = run(*reference(), toy, call).experts;
    for (const Backend* backend : fitting(spec)) {
      const std::vector<float> out = run(*backend, toy, call).experts;
      EXPECT_NEAR(norm(out) / norm(definition), 1.000, 1e-5) << backend->name << ", size " << size;
      EXPECT_LT(rel_l2(out, definition), 1e-5) << backend->name << ", size " << size;
    }
  }
}

TEST(Reports, B42_BlockScalesKeepTheirExponent) {
  auto down = shared(blank(kNvfp4, {128, 32}));
  const auto value = [](unsigned byte) {
    const int exponent = static_cast<int>(byte >> 3), mantissa = static_cast<int>(byte & 7);
    return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  };
  for (unsigned byte = 1; byte < 0x7F; ++byte) {
    put_code(*down, byte, 0, 0x7);  // 6
    down->scales[byte * static_cast<std::size_t>(down->matrix.scales.row_stride)] = std::byte(byte);
  }
  ASSERT_EQ(6 * value(0x01), 0.01171875);
  ASSERT_EQ(6 * value(0x07), 0.08203125);
  ASSERT_EQ(6 * value(0x08), 0.09375);
  ASSERT_EQ(6 * value(0x38), 6);
  ASSERT_EQ(6 * value(0x7E), 2688);
  const Toy toy = down_probe(down);
  for (const Backend* backend : fitting(toy.spec)) {
    const Output out = run(*backend, toy, one_hot(128));
    for (unsigned byte = 1; byte < 0x7F; ++byte)
      EXPECT_EQ(out.experts[byte], 6 * value(byte)) << backend->name << ", byte " << byte;
  }
}

/// The report's 288 is 300 in eight bits; activations keep theirs here. 4.48 is what the other expert's scale
/// would have made of it.
TEST(Reports, B44_ExpertsDoNotShareAnActivationScale) {
  for (const Format format : all_formats()) {
    const Toy toy = make(spec_of(format, kSilu, {}, {.experts = 2}), {linear_expert(), linear_expert()});
    Call call = linear_call({300, 0.05f});
    call.ids = {1, 0};
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, call);
      EXPECT_TRUE(near(out.experts[0], 300)) << backend->name << ", " << format.str();
      EXPECT_TRUE(near(out.experts[128], 0.05)) << backend->name << ", " << format.str();
    }
  }
  const Edited whole(fixture("deepseek_v4_nvfp4")), different(fixture("deepseek_v4_nvfp4"), [](auto&m) {
    m.template set<float>("layers.1.ffn.experts.0.w1.input_scale", 0, 0.01f);
    m.template set<float>("layers.1.ffn.experts.1.w1.input_scale", 0, 1.0f);
  });
  EXPECT_EQ(numbers_of(different->weights(1)), numbers_of(whole->weights(1)));
  EXPECT_TRUE(different.notes("activation"));
}

/// Experts 0 and 3 change places, and the ids with them. All that an expert has is its entry of
/// LayerWeights::routed, so nothing can stay behind.
TEST(Reports, B45_ExpertsThatMoveTakeEverythingAlong) {
  std::vector<Expert> experts;
  const float second[] = {1, 0.5f, 0.25f, 0.125f};
  for (int e = 0; e < 4; ++e) {
    experts.push_back(toy_expert({{2.0 + e, 3}, {1, 1.0 + e}}));
    experts.back().gate_bias = {0.5f * static_cast<float>(e)};
    experts.back().up_bias = {0, 1};
    experts.back().down_bias = {static_cast<float>(e), 2};
  }
  Toy before = make(spec_of(kNvfp4, kSilu, {.limit = 4}, {.experts = 4, .top_k = 2}), experts);
  for (std::size_t e = 0; e < 4; ++e)
    before.weights.routed[e].gate->second_scale = before.weights.routed[e].up.second_scale = second[e];
  Toy after = before;
  std::swap(after.weights.routed[0], after.weights.routed[3]);
  Call call = one_hot(128, 3);
  call.ids = {0, 1, 3, 2, 0, 3};
  call.weights = {0.5f, 0.25f, 1, 0.75f, 0.375f, 0.625f};
  Call moved = call;
  for (std::int32_t& id : moved.ids) id = id == 0 ? 3 : id == 3 ? 0 : id;
  for (const Backend* backend : fitting(before.spec)) {
    const Output one = run(*backend, before, call), other = run(*backend, after, moved);
    EXPECT_EQ(one.experts, other.experts) << backend->name;
    EXPECT_NE(one.experts, run(*backend, after, call).experts) << backend->name;
  }
}

TEST(Reports, B46_TheSecondScaleOfDownIsAppliedOnce) {
  auto down = shared(matrix(kNvfp4, {128, 128}, {{0, 0, 1}}));
  down->matrix.second_scale = 0.125f;
  Toy toy = make(spec_of(kNvfp4, kRelu2), {Expert{.gate = {}, .up = {{0, 0, 2}}, .down = {}}});
  toy.weights.routed[0].down = down->matrix;
  keep(toy, down);
  // mid = (2 x)^2 = 8 for x = sqrt 2
  for (const Backend* backend : fitting(toy.spec))
    EXPECT_TRUE(near(run(*backend, toy, one_hot(128, 1, std::sqrt(2.0f))).experts[0], 1)) << backend->name;
}

TEST(Reports, B48_ExpertsKeepTheSecondScaleThatTheirBlocksWereMadeFor) {
  constexpr std::int64_t kRows = 64, kCols = 64;
  std::vector<float> large = testing::Draw(4).normals(kRows * kCols, 1);
  const float amax = std::abs(*std::ranges::max_element(large, {}, [](float v) { return std::abs(v); }));
  for (float& value : large) value /= amax;
  std::vector<float> small = large;
  for (float& value : small) value /= 16;
  auto big = shared(encode(kNvfp4, large.data(), kRows, kCols)),
       little = shared(encode(kNvfp4, small.data(), kRows, kCols));
  EXPECT_FLOAT_EQ(big->matrix.second_scale, 1.0f / 2688);
  EXPECT_FLOAT_EQ(little->matrix.second_scale, 1.0f / 16 / 2688);
  std::vector<double> row(kCols);
  for (std::int64_t r = 0; r < kRows; ++r) {
    decode_row(little->matrix, r, row.data());
    for (std::int64_t c = 0; c < kCols; c += 16) {
      const float* block = small.data() + r * kCols + c;
      double most = 0;
      for (int i = 0; i < 16; ++i) most = std::max(most, std::abs(double{block[i]}));
      for (int i = 0; i < 16; ++i)
        EXPECT_LE(std::abs(row[static_cast<std::size_t>(c + i)] - double{block[i]}),
                  (1.0 / 6 + 0.0625) * most);
    }
  }
  // Beside the large expert the small one has the bits that it has alone.
  LayerSpec spec = spec_of(kNvfp4, kSilu, {}, {.hidden = kRows, .intermediate = kCols, .experts = 2});
  Toy both = make(spec, {Expert{.gate = {}, .up = {}, .down = {}}, Expert{.gate = {}, .up = {}, .down = {}}});
  both.weights.routed[0] = {.gate = big->matrix, .up = big->matrix, .down = big->matrix};
  both.weights.routed[1] = {.gate = little->matrix, .up = little->matrix, .down = little->matrix};
  keep(both, big);
  keep(both, little);
  Toy alone = both;
  alone.weights.routed[0] = alone.weights.routed[1];
  Call call{.tokens = 3, .hidden = draw_rows(3, kRows, 8)};
  call.ids = {1, 1, 1};
  for (const Backend* backend : fitting(spec))
    EXPECT_EQ(run(*backend, both, call), run(*backend, alone, call)) << backend->name;
}

/// Tokens far apart in size, and a scale column that is not one for each row.
TEST(Reports, B49_EveryTokenHasItsOwnSize) {
  for (const Format format : all_formats()) {
    const Toy toy = make(spec_of(format, kSilu), {linear_expert()});
    for (const Backend* backend : fitting(toy.spec)) {
      const Output out = run(*backend, toy, linear_call({0.01f, 1, 100}));
      EXPECT_NEAR(out.experts[0], 0.01, 1e-7) << backend->name << ", " << format.str();
      EXPECT_NEAR(out.experts[128], 1, 1e-6) << backend->name << ", " << format.str();
      EXPECT_NEAR(out.experts[256], 100, 1e-4) << backend->name << ", " << format.str();
    }
  }
  const auto repeated = [] {
    Edited(fixture("qwen3_moe_fp8_channel"), [](auto& m) {
      auto& scale = m.tensor("model.layers.0.mlp.experts.0.up_proj.weight_scale");
      scale.shape = {128, 4};
      scale.bytes.resize(scale.bytes.size() * 4);
    });
  };
  EXPECT_EQ(refused(repeated, {"[128, 4]"}), "wrong_shape");
}

TEST(Reports, B50_APoisonedInputScaleChangesNothing) {
  const Edited whole(fixture("deepseek_v4_nvfp4"));
  const std::vector<float> numbers = numbers_of(whole->weights(1));
  for (const float poison : {1e30f, kNan}) {
    const Edited poisoned(fixture("deepseek_v4_nvfp4"), [&](auto& m) {
      m.template set<float>(kModelopt + "w1.input_scale", 0, 0.02f);
      m.template set<float>(kModelopt + "w3.input_scale", 0, poison);
    });
    EXPECT_EQ(numbers_of(poisoned->weights(1)), numbers);
  }
}

}  // namespace
}  // namespace sluice::reports
