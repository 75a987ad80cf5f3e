// SPDX-License-Identifier: Apache-2.0
// A layer runs on the card that it was planned for, whichever is current, and leaves that as it was. Skipped
// with fewer than two cards.
#include <thread>

#include "tests/conformance/cases.h"
#include "tests/cuda/device_call.h"

namespace sluice {
namespace {

using on_card::CardCall;
using on_card::Results;
using on_card::run_on_host;

class TwoCards : public on_card::BackendTest {
 protected:
  void SetUp() override {
    on_card::BackendTest::SetUp();
    if (!IsSkipped() && on_card::cards() < 2) GTEST_SKIP() << "one card";
  }
  void TearDown() override { cudaSetDevice(0); }

  Layer layer_on(int card, const LayerWeights& weights) const {
    const std::string name(backend().name);
    const DeviceFacts device = known_device("cuda:" + std::to_string(card));
    return Layer(choose({.layer = small_spec(), .device = device, .tokens = {1}, .by_name = name}), weights,
                 {.executor = make_thread_team(1)});
  }
};

int current() {
  int device = -1;
  on_card::check(cudaGetDevice(&device));
  return device;
}

TEST_P(TwoCards, TwoLayersOnTwoCards) {
  const LayerWeights weights[] = {draw_weights(small_spec(), testing::Numbers::noisy, 3),
                                  draw_weights(small_spec(), testing::Numbers::noisy, 4)};
  const testing::DrawnCall drawn = draw_call(small_spec(), testing::Numbers::noisy, {.tokens = 12}, 9);
  const LayerCall call{.hidden = drawn.hidden};
  on_card::check(cudaSetDevice(0));
  const Layer layers[] = {layer_on(0, weights[0]), layer_on(1, weights[1])};
  EXPECT_EQ(current(), 0);
  // The same weights on the other card give the same bits.
  const Results want[] = {run_on_host(layer_on(1, weights[0]), call), run_on_host(layers[1], call)};
  for (int from = 0; from < 2; ++from)
    for (int card = 0; card < 2; ++card) {
      on_card::check(cudaSetDevice(card));
      CardCall on_card(layers[card], call);  // its memory and its stream are the card's
      const on_card::Stream stream;
      on_card.poison();
      on_card::check(cudaDeviceSynchronize());
      on_card::check(cudaSetDevice(from));
      on_card.enqueue(stream.get());
      EXPECT_EQ(current(), from);
      stream.wait();
      on_card::expect_same(on_card.read(), want[card], "card " + std::to_string(card));
      on_card::expect_same(run_on_host(layers[card], call), want[card], "from the host");
      EXPECT_EQ(current(), from);
      on_card::check(cudaSetDevice(card));
    }
}

TEST_P(TwoCards, AtOnceFromTwoThreads) {
  const LayerWeights weights = draw_weights(small_spec(), testing::Numbers::noisy, 3);
  const testing::DrawnCall drawn = draw_call(small_spec(), testing::Numbers::noisy, {.tokens = 12}, 9);
  const LayerCall call{.hidden = drawn.hidden};
  const Layer layers[] = {layer_on(0, weights), layer_on(1, weights)};
  Results got[2];
  {
    std::jthread one([&] { got[0] = run_on_host(layers[0], call); });
    std::jthread other([&] { got[1] = run_on_host(layers[1], call); });
  }
  on_card::expect_same(got[0], got[1], "two threads");
}

TEST_P(TwoCards, ACardThatIsNotThere) {
  DeviceFacts device = known_device("cuda");
  device.index = static_cast<int>(on_card::cards());
  const Plan plan = choose(
      {.layer = small_spec(), .device = device, .tokens = {1}, .by_name = std::string(backend().name)});
  small::expect_error("no_device",
                      [&] { Layer(plan, draw_weights(small_spec(), testing::Numbers::noisy, 3)); });
}

INSTANTIATE_TEST_SUITE_P(Backends, TwoCards, ::testing::ValuesIn(on_card::known_backends()),
                         conformance::test_name);

}  // namespace
}  // namespace sluice
