// SPDX-License-Identifier: Apache-2.0
// Logits in float32, against double.
#include "engine/router.h"

#include <gtest/gtest.h>

#include <cmath>

#include "format/formats.h"
#include "testing/draw.h"

namespace sluice {
namespace {

TEST(Dot, EverySizeIsExactOnIntegers) {
  testing::Draw draw(1);
  for (int size = 0; size < 70; ++size) {
    std::vector<float> a, b;
    double want = 0;
    for (int i = 0; i < size; ++i) {
      a.push_back(static_cast<float>(draw.below(7) - 3));
      b.push_back(static_cast<float>(draw.below(7) - 3));
      want += a.back() * b.back();
    }
    EXPECT_EQ(dot(a.data(), b.data(), size), want) << size;
  }
}

TEST(Dot, RoundsLittleAndKeepsNaN) {
  testing::Draw draw(2);
  std::vector<float> a = draw.normals(2880, 1), b = draw.normals(2880, 1);
  double want = 0, magnitude = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    want += double{a[i]} * b[i];
    magnitude += std::abs(double{a[i]} * b[i]);
  }
  EXPECT_NEAR(dot(a.data(), b.data(), 2880), want, magnitude * 0x1p-24);
  a[1234] = std::nanf("");
  EXPECT_TRUE(std::isnan(dot(a.data(), b.data(), 2880)));
}

TEST(Router, LogitsOfAllTypesTokensAndThreads) {
  const int experts = 21, hidden = 50;
  testing::Draw draw(3);
  const std::vector<float> weight = draw.normals(experts * hidden, 1), bias = draw.normals(experts, 1),
                           x = draw.normals(5 * hidden, 1);
  const format::Encoded encoded = encode(Formats::of<format::F32>(), weight.data(), experts, hidden);
  RouterWeights weights{.weight = encoded.matrix,
                        .bias = {reinterpret_cast<const std::byte*>(bias.data()), DType::f32, experts, 4}};
  const Router router({.score = *Score::parse("softmax"), .experts = experts, .top_k = 2, .bias = true},
                      weights);
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    const auto team = make_thread_team(threads);
    std::vector<float> scratch(5 * hidden), out(5 * experts);
    router.logits({reinterpret_cast<const std::byte*>(x.data()), DType::f32, 5, hidden, 4 * hidden}, *team,
                  scratch.data(), out.data());
    for (int token = 0; token < 5; ++token)
      for (int e = 0; e < experts; ++e) {
        double want = bias[static_cast<std::size_t>(e)];
        for (int k = 0; k < hidden; ++k)
          want += double{weight[static_cast<std::size_t>(e * hidden + k)]} *
                  x[static_cast<std::size_t>(token * hidden + k)];
        EXPECT_NEAR(out[static_cast<std::size_t>(token * experts + e)], want, 1e-5);
      }
    if (first.empty()) first = out;
    EXPECT_EQ(out, first) << "depends on threads";
  }
}

}  // namespace
}  // namespace sluice
