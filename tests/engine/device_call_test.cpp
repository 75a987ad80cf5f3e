// SPDX-License-Identifier: Apache-2.0
// What needs no card of calls on a card's tensors: a layer of the processor refuses them and says what to do,
// and a layer keeps to the device that its plan names. tests/cuda has the rest.
#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using small::expect_error;

class DeviceCalls : public ::testing::Test {
 protected:
  LayerWeights weights_ = draw_weights(small::spec(), testing::Numbers::noisy, 3);
};

TEST_F(DeviceCalls, AreRefusedByLayersOfTheProcessor) {
  const Layer layer(small::plan_for(small::spec()), weights_);
  expect_error("not_on_card", [&] { layer.enqueue({.hidden = {nullptr, DType::bf16, 0, 96, 0}}); });
  expect_error("not_on_card", [&] { layer.enqueue_rows({.hidden = {nullptr, DType::bf16, 0, 96, 0}}); });
  expect_error("not_on_card", [&] { (void)layer.device_workspace_bytes(1); });
  expect_error("not_on_card", [&] { (void)layer.device_rows_workspace_bytes(1); });
  try {
    layer.enqueue({.hidden = {nullptr, DType::bf16, 0, 96, 0}});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("known_device(\"cuda\")"), std::string::npos) << error.what();
  }
}

TEST_F(DeviceCalls, ADeviceThatIsNotThereIsRefused) {
  for (const int index : {-1, 1, 1000}) {
    Plan plan = small::plan_for(small::spec());
    plan.request.device.index = index;
    expect_error("no_device", [&] { const Layer layer(plan, weights_); });
  }
}

}  // namespace
}  // namespace sluice
