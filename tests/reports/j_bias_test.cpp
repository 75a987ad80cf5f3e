// SPDX-License-Identifier: Apache-2.0
// Section J of the reports: biases of experts.
#include "tests/reports/toy.h"

namespace sluice::reports {
namespace {

TEST(Reports, B97_BiasesOnTheProcessor) {
  for (const Format format : all_formats()) {
    const Expert expert{.gate = {},
                        .up = {},
                        .down = identity(128),
                        .gate_bias = {1},
                        .up_bias = {2},
                        .down_bias = std::vector<float>(128, 0.5f)};
    const Toy toy = make(spec_of(format, kSilu, kSwigluOai, {.experts = 2}), {expert, expert});
    ASSERT_TRUE(toy.routed().gate_up_bias && toy.routed().down_bias);
    for (const Backend* backend : fitting(toy.spec)) {
      Call call = one_hot(128);
      call.ids = {1};
      const Output out = run(*backend, toy, call);
      EXPECT_TRUE(near(out.experts[0], 3.0374)) << backend->name << ", " << format.str();
      EXPECT_EQ(out.experts[64], 0.5f) << backend->name << ", " << format.str();
    }
  }
}

}  // namespace
}  // namespace sluice::reports
