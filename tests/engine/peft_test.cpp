// SPDX-License-Identifier: Apache-2.0
// Models that transformers saved, with adapters that PEFT saved (tests/data/make_adapters.py), against what
// the merged models answer in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "sluice/checkpoint.h"
#include "sluice/lora.h"
#include "testing/device_for.h"
#include "testing/layer_input.h"
#include "testing/rounding.h"
#include "testing/usable_backends.h"

namespace sluice {
namespace {

constexpr double kReferenceError = 3e-6, kBackendError = 4e-3;  // as for the fixtures

class PeftTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string directory() const {
    return SLUICE_SOURCE_DIR "/tests/data/adapters/" + std::string(GetParam());
  }
};

std::vector<float> floats(const TensorFile& file, const std::string& name) {
  const TensorView& view = file.at(name);
  std::vector<float> all(view.bytes() / sizeof(float));
  std::memcpy(all.data(), view.data, view.bytes());
  return all;
}

double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / norm);
}

TEST_P(PeftTest, AdaptedIsWhatTheMergedModelAnswers) {
  const Checkpoint model = Checkpoint::open(directory() + "/model");
  const LoraAdapter adapter = Lora::open(directory() + "/adapter", model).adapter(0);
  const TensorFile file = TensorFile::open(directory() + "/expected.safetensors");
  LayerSpec spec = model.spec(0);
  const testing::LayerInput input = testing::read_layer_input(file, 0, spec);
  const std::vector<float> adapted = floats(file, "0.block_out"), plain = floats(file, "0.plain");
  ASSERT_GT(distance(adapted, plain), 0.01) << "the adapter does nothing";
  spec.routed.lora_rank = LoraAdapter::largest_rank(adapter.routed);
  const LoraAdapter* const adapters[] = {&adapter};
  for (const Backend* backend : testing::usable_backends(Features::set<feature::Lora>())) {
    SCOPED_TRACE(backend->name);
    const Plan plan = choose({.layer = spec,
                              .device = testing::device_for(backend->name),
                              .tokens = {1},
                              .by_name = std::string(backend->name)});
    const bool rounds = testing::rounding_of(backend->name) != testing::Rounding::none;
    if (rounds && plan.chosen.empty()) continue;  // not in these formats
    const Layer layer(plan, model.weights(0), {.executor = make_thread_team(2)});
    std::vector<std::byte> workspace(layer.workspace_bytes(input.hidden.rows));
    std::vector<float> out(adapted.size());
    const double most = testing::is_reference(*backend) ? kReferenceError
                        : rounds                        ? testing::kInt8RelL2
                                                        : kBackendError;
    for (const std::int32_t id : {0, -1}) {
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(input.hidden.rows), id);
      layer.run({.hidden = input.hidden,
                 .adapters = adapters,
                 .adapter_ids = ids,
                 .block_out = out.data(),
                 .workspace = workspace});
      EXPECT_LT(distance(out, id == 0 ? adapted : plain), most) << "adapter " << id;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PeftTest, ::testing::Values("qwen3_moe", "mixtral", "gpt_oss", "llama4"));

}  // namespace
}  // namespace sluice
