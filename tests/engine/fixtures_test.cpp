// SPDX-License-Identifier: Apache-2.0
// End to end: checkpoints that no part of this repository wrote, through every backend this machine runs,
// against what transformers computed for them in float64 (tests/data/fixtures, models/tiny-gpt-oss-mxfp4).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "sluice/checkpoint.h"
#include "sluice/error.h"
#include "testing/reference_run.h"
#include "testing/rounding.h"
#include "testing/usable_backends.h"
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

constexpr double kReferenceError = 3e-6;  // float32 output of double arithmetic, float32 routing weights
constexpr double kBackendError = 4e-3;    // what the files' README allows bf16 activations

struct Fixture {
  std::string name, directory;  // or a .gguf file
  std::string expected = directory + "/expected.safetensors";
};

std::vector<Fixture> fixtures() {
  std::vector<Fixture> all{{"tiny_gpt_oss_mxfp4", SLUICE_SOURCE_DIR "/models/tiny-gpt-oss-mxfp4"}};
  for (const char* name :
       {"gpt_oss_mxfp4", "gpt_oss_bf16", "deepseek_v4_fp4", "deepseek_v4_base_fp8", "deepseek_v4_nvfp4",
        "qwen3_moe_fp8_block", "qwen3_moe_fp8_channel", "qwen3_moe_ct_nvfp4", "qwen3_moe_ct_mxfp4",
        "mixtral_bf16", "mixtral_awq", "mixtral_gptq", "mixtral_gptq_act_order", "qwen3_moe_ct_int3",
        "qwen3_moe_ct_int4", "qwen3_moe_ct_int4_asym", "qwen3_moe_ct_int8"})
    all.push_back({name, std::string(SLUICE_SOURCE_DIR "/tests/data/fixtures/") + name});
  all.push_back({"gpt_oss_mxfp4_gguf", SLUICE_SOURCE_DIR "/tests/data/gguf/gpt-oss-mxfp4.gguf",
                 SLUICE_SOURCE_DIR "/tests/data/fixtures/gpt_oss_mxfp4/expected.safetensors"});
  all.push_back({"deepseek2_q4_k_gguf", SLUICE_SOURCE_DIR "/tests/data/gguf/deepseek2-q4_k.gguf",
                 SLUICE_SOURCE_DIR "/tests/data/gguf/deepseek2-q4_k.expected.safetensors"});
  return all;
}

template <class T>
std::vector<T> values(const TensorFile& file, int layer, const std::string& name) {
  const TensorView& view = file.at(std::to_string(layer) + "." + name);
  std::vector<T> all(view.bytes() / sizeof(T));
  std::memcpy(all.data(), view.data, view.bytes());
  return all;
}

/// The largest ||got - want|| / ||want|| of a row.
double worst_row(const std::vector<float>& got, const std::vector<float>& want, int width) {
  double worst = 0;
  for (std::size_t row = 0; row < want.size(); row += static_cast<std::size_t>(width)) {
    double error = 0, norm = 0;
    for (std::size_t i = row; i < row + static_cast<std::size_t>(width); ++i) {
      error += std::pow(double{got[i]} - want[i], 2);
      norm += std::pow(double{want[i]}, 2);
    }
    if (!(error <= worst * worst * norm)) worst = std::sqrt(error / norm);  // NaN is the worst
  }
  return worst;
}

/// What a file expects of a layer.
struct Expected {
  Expected(const TensorFile& file, int layer)
      : hidden(values<std::byte>(file, layer, "hidden")),
        tokens(static_cast<int>(file.at(std::to_string(layer) + ".hidden").shape[0])),
        token_ids(values<std::int64_t>(file, layer, "input_ids")),
        router_logits(values<float>(file, layer, "router_logits")),
        topk_ids(values<std::int32_t>(file, layer, "topk_ids")),
        topk_weights(values<float>(file, layer, "topk_weights")),
        experts_out(values<float>(file, layer, "experts_out")),
        block_out(values<float>(file, layer, "block_out")) {}

  std::vector<std::byte> hidden;
  int tokens;
  std::vector<std::int64_t> token_ids;
  std::vector<float> router_logits;
  std::vector<std::int32_t> topk_ids;
  std::vector<float> topk_weights, experts_out, block_out;
};

/// Ids equal as sets and each with its weight.
void expect_routing(const small::Outputs& out, const Expected& want, std::size_t top_k) {
  for (std::size_t at = 0; at < want.topk_ids.size(); ++at) {
    const std::size_t token = at / top_k * top_k;
    const auto first = out.topk_ids.begin() + static_cast<std::ptrdiff_t>(token);
    const auto found = std::find(first, first + static_cast<std::ptrdiff_t>(top_k), want.topk_ids[at]);
    ASSERT_NE(found, first + static_cast<std::ptrdiff_t>(top_k)) << "token " << token / top_k;
    EXPECT_NEAR(out.topk_weights[static_cast<std::size_t>(found - out.topk_ids.begin())],
                want.topk_weights[at], 1e-5);
  }
}

enum class From { router, logits, routing };

small::Outputs run(const Layer& layer, const Expected& want, From from) {
  const LayerSpec& spec = layer.plan().request.layer;
  small::Outputs out(spec, want.tokens);
  std::vector<std::byte> workspace(layer.workspace_bytes(want.tokens));
  LayerCall call{.hidden = {want.hidden.data(), DType::bf16, want.tokens, spec.routed.hidden,
                            2 * std::ptrdiff_t{spec.routed.hidden}},
                 .token_ids = want.token_ids,
                 .experts_out = out.experts_out.data(),
                 .block_out = out.block_out.data(),
                 .topk_ids = out.topk_ids.data(),
                 .topk_weights = out.topk_weights.data(),
                 .workspace = workspace};
  if (from == From::logits) call.router_logits = want.router_logits;
  if (from == From::routing)
    call.routing = {want.topk_ids.data(), want.topk_weights.data(), want.tokens, spec.routed.top_k};
  layer.run(call);
  return out;
}

/// None where the backend refuses these weights, which it finds only while packing them (docs/cuda.md).
std::optional<Layer> layer_of(const Plan& plan, const LayerWeights& weights) try {
  return Layer(plan, weights);
} catch (const Error& error) {
  if (error.info().code != "scales_too_far_apart") throw;
  return std::nullopt;
}

class FixturesTest : public ::testing::TestWithParam<Fixture> {};

TEST_P(FixturesTest, EveryBackendGivesWhatIsExpected) {
  const Checkpoint model = Checkpoint::open(GetParam().directory);
  const TensorFile file = TensorFile::open(GetParam().expected);
  ASSERT_FALSE(model.info().moe_layers.empty());
  for (const int number : model.info().moe_layers) {
    const Expected want(file, number);
    const LayerSpec spec = model.spec(number);
    int ran = 0;
    for (const Backend* backend : testing::usable_backends()) {
      const Plan plan = small::plan_for(spec, std::string(backend->name));
      if (plan.chosen.empty() && !testing::is_reference(*backend))
        continue;  // conformance tests hold it to its word
      const std::optional<Layer> layer = layer_of(plan, model.weights(number));
      if (!layer) continue;
      ++ran;
      const bool rounds = testing::rounding_of(backend->name) != testing::Rounding::none;
      const double most = testing::is_reference(*backend) ? kReferenceError
                          : rounds                        ? testing::kInt8RelL2
                                                          : kBackendError;
      for (const From from : {From::router, From::logits, From::routing}) {
        SCOPED_TRACE(::testing::Message()
                     << backend->name << ", layer " << number << ", from " << static_cast<int>(from));
        const small::Outputs out = run(*layer, want, from);
        expect_routing(out, want, static_cast<std::size_t>(spec.routed.top_k));
        EXPECT_LE(worst_row(out.experts_out, want.experts_out, spec.routed.hidden), most);
        EXPECT_LE(worst_row(out.block_out, want.block_out, spec.routed.hidden), most);
      }
    }
    EXPECT_GE(ran, 1) << "the reference runs everything";
  }
}

INSTANTIATE_TEST_SUITE_P(All, FixturesTest, ::testing::ValuesIn(fixtures()),
                         [](const auto& test) { return test.param.name; });

/// The trained model: real text reaches the clamp, and leaving it out would show (its README's numbers).
TEST(TrainedModel, DroppingTheClampWouldChangeTheBlocks) {
  const std::string directory = SLUICE_SOURCE_DIR "/models/tiny-gpt-oss-mxfp4";
  const Checkpoint model = Checkpoint::open(directory);
  const TensorFile file = TensorFile::open(directory + "/expected.safetensors");
  const double effect[] = {0.19, 0.14, 0.33, 0.43};
  for (int number = 0; number < 4; ++number) {
    const Expected want(file, number);
    const LayerSpec spec = model.spec(number);
    const LayerWeights weights = model.weights(number);
    const testing::ReferenceResult result = testing::reference_run(
        {.spec = spec,
         .weights = weights,
         .hidden = {want.hidden.data(), DType::bf16, want.tokens, spec.routed.hidden,
                    2 * std::ptrdiff_t{spec.routed.hidden}},
         .routing = {want.topk_ids.data(), want.topk_weights.data(), want.tokens, spec.routed.top_k}});
    EXPECT_NEAR(result.clamp_effect, effect[number], 0.006) << number;
    EXPECT_GT(result.up_over_limit, 0.01) << number;
    const std::vector<float> without = values<float>(file, number, "experts_out_noclamp");
    std::vector<float> got(without.size());
    std::ranges::transform(result.experts_out_without_clamp, got.begin(),
                           [](double v) { return static_cast<float>(v); });
    EXPECT_LE(worst_row(got, without, spec.routed.hidden), kReferenceError);
  }
}

}  // namespace
}  // namespace sluice
