// SPDX-License-Identifier: Apache-2.0
// Ids and weights that transformers computed in double for the fixtures (tests/data/README.md), from their
// logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "core/bits.h"
#include "format/scales.h"
#include "sluice/checkpoint.h"
#include "tests/routing/route.h"

namespace sluice {
namespace {

using testing_routing::Call;
using testing_routing::route;
using testing_routing::Routed;

template <class T>
std::vector<T> elements(const TensorFile& file, const std::string& name) {
  const TensorView& view = file.at(name);
  std::vector<T> out(static_cast<std::size_t>(view.elements()));
  EXPECT_EQ(view.bytes(), out.size() * sizeof(T)) << name;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = load<T>(view.data + i * sizeof(T));
  return out;
}

Call call_of(const RouterSpec& spec, const RouterWeights& weights, const TensorFile& expected,
             const std::string& layer) {
  Call call{.logits = elements<float>(expected, layer + ".router_logits"), .table = weights.table};
  for (std::int64_t i = 0; i < weights.selection_bias.size; ++i)
    call.selection_bias.push_back(format::read_number(
        weights.selection_bias.dtype, weights.selection_bias.data + i * weights.selection_bias.stride));
  if (spec.by_token_id) call.token_ids = elements<std::int64_t>(expected, layer + ".input_ids");
  return call;
}

/// Ids as sets: transformers orders what it selects in its own way. Weights belong to their ids.
void expect_token(const Routed& got, const Routed& want, std::size_t first, std::size_t top_k) {
  for (std::size_t i = first; i < first + top_k; ++i) {
    const auto begin = want.ids.begin() + static_cast<std::ptrdiff_t>(first);
    const auto at = std::find(begin, begin + static_cast<std::ptrdiff_t>(top_k), got.ids[i]);
    ASSERT_NE(at, begin + static_cast<std::ptrdiff_t>(top_k)) << "slot " << i << ": expert " << got.ids[i];
    EXPECT_NEAR(got.weights[i], want.weights[static_cast<std::size_t>(at - want.ids.begin())], 1e-6)
        << "slot " << i;
  }
}

class Fixture : public ::testing::TestWithParam<const char*> {};

TEST_P(Fixture, IsRoutedAsTransformersDoes) {
  const std::string directory = std::string(SLUICE_SOURCE_DIR "/tests/data/fixtures/") + GetParam();
  const Checkpoint model = Checkpoint::open(directory);
  const TensorFile expected = TensorFile::open(directory + "/expected.safetensors");
  ASSERT_FALSE(model.info().moe_layers.empty());
  for (const int layer : model.info().moe_layers) {
    SCOPED_TRACE(layer);
    const RouterSpec spec = model.spec(layer).router;
    const std::string name = std::to_string(layer);
    const Routed got = route(spec, call_of(spec, model.weights(layer).router, expected, name));
    const Routed want{elements<std::int32_t>(expected, name + ".topk_ids"),
                      elements<float>(expected, name + ".topk_weights")};
    ASSERT_EQ(got.ids.size(), want.ids.size());
    const auto top_k = static_cast<std::size_t>(spec.top_k);
    for (std::size_t first = 0; first < got.ids.size(); first += top_k) expect_token(got, want, first, top_k);
  }
}

INSTANTIATE_TEST_SUITE_P(Routing, Fixture,
                         ::testing::Values("gpt_oss_mxfp4", "gpt_oss_bf16", "deepseek_v4_fp4",
                                           "deepseek_v4_base_fp8", "deepseek_v4_nvfp4", "qwen3_moe_fp8_block",
                                           "mixtral_bf16"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice
