// SPDX-License-Identifier: Apache-2.0
// Activations against their closed forms in double, and the facts of which public bug reports are made: the
// clamp's place, its sides, NaN, and what no limit means.
#include "activation/activation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace sluice {
namespace {

using activation::GeluErf;
using activation::GeluTanh;
using activation::Relu2;
using activation::Silu;
using activation::SiluThenClamp;
using activation::Situ;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr ActivationParams kNone{};
constexpr ActivationParams kGptOss{.limit = 7.0f, .slope = 1.702f, .shift = 1.0f};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Every activation by its name, so that the tests below cover whatever the list holds.
template <class Visit>
void each_activation(Visit visit) {
  for (const std::string_view name : Activation::all())
    Activations::visit(Activation::parse(name).value(), [&]<class A>() { visit.template operator()<A>(); });
}

/// The closed forms, written independently of activation.h: models.md section 1.
std::function<double(double, double, const ActivationParams&)> closed_form(std::string_view name) {
  if (name == "silu")
    return [](double g, double u, const ActivationParams& p) {
      const double limit = p.limit, gate = std::fmin(g, limit);
      return gate * sigmoid(double{p.slope} * gate) * (std::fmax(-limit, std::fmin(u, limit)) + p.shift);
    };
  if (name == "silu_then_clamp")
    return [](double g, double u, const ActivationParams& p) {
      const double limit = p.limit;
      return std::fmin(g * sigmoid(g), limit) * std::fmax(-limit, std::fmin(u, limit));
    };
  if (name == "gelu_tanh")
    return [](double g, double u, const ActivationParams&) {
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    };
  if (name == "gelu_erf")
    return [](double g, double u, const ActivationParams&) {
      return 0.5 * g * std::erfc(-g / std::sqrt(2.0)) * u;
    };
  if (name == "situ")
    return [](double g, double u, const ActivationParams& p) {
      const auto bounded = [](double x, double beta) {
        const double e = std::expm1(-2 * std::abs(x) / beta);  // tanh by another road
        return std::isinf(beta) ? x : std::copysign(beta * -e / (e + 2), x);
      };
      return bounded(g, p.situ_beta) * sigmoid(g) * bounded(u, p.situ_linear_beta);
    };
  if (name == "relu2")
    return [](double, double u, const ActivationParams&) { return std::fmax(u, 0) * std::fmax(u, 0); };
  return {};
}

std::vector<ActivationParams> params_of(const activation::Reads& reads) {
  std::vector<ActivationParams> list = {kNone};
  if (reads.limit) {
    list.push_back({.limit = 7.0f});
    list.push_back({.limit = 1.5f});
    list.push_back({.limit = 0.0f});
  }
  if (reads.slope && reads.shift) list.push_back(kGptOss);
  if (reads.saturation) {
    list.push_back({.situ_beta = 4.0f, .situ_linear_beta = 25.0f});
    list.push_back({.situ_beta = 4.0f});
  }
  return list;
}

TEST(Activation, NamesParseToThemselves) {
  const std::vector<std::string_view> want = {"silu",     "silu_then_clamp", "gelu_tanh",
                                              "gelu_erf", "relu2",           "situ"};
  ASSERT_EQ(std::vector<std::string_view>(Activation::all().begin(), Activation::all().end()), want);
  for (const std::string_view name : want) EXPECT_EQ(Activation::parse(name).value().str(), name);
  EXPECT_FALSE(Activation::parse("swiglu"));
}

TEST(Activation, WhoHasAGate) {
  for (const std::string_view name : Activation::all())
    EXPECT_EQ(is_gated(Activation::parse(name).value()), name != "relu2") << name;
}

TEST(Activation, AgreesWithItsClosedForm) {
  std::mt19937 draw(11);
  std::normal_distribution<double> normal(0, 6);
  each_activation([&]<class A>() {
    const auto form = closed_form(A::name);
    ASSERT_TRUE(form) << "no closed form for " << A::name;
    for (const ActivationParams& p : params_of(A::reads))
      for (int i = 0; i < 4000; ++i) {
        const double gate = normal(draw), up = normal(draw), want = form(gate, up, p);
        EXPECT_NEAR(A::apply(gate, up, p), want, 1e-12 * (1 + std::abs(want))) << A::name;
        const auto g = static_cast<float>(gate), u = static_cast<float>(up);
        const double single = form(g, u, p);
        // 1 + tanh and 1 + erf cancel for negative gates: there the unit is that of gate times up.
        const double within = 2e-6 * std::abs(single) + 2e-7 * std::abs(gate * up);
        EXPECT_NEAR(A::apply(g, u, p), single, within) << A::name << " " << g << " " << u;
      }
  });
}

TEST(Activation, NanInNanOut) {
  const double nan = std::nan("");
  each_activation([&]<class A>() {
    for (const ActivationParams& p : params_of(A::reads)) {
      EXPECT_TRUE(std::isnan(A::apply(1.0, nan, p))) << A::name;
      EXPECT_TRUE(std::isnan(A::apply(1.0f, std::nanf(""), p))) << A::name;
      if (!A::gated) continue;
      EXPECT_TRUE(std::isnan(A::apply(nan, 1.0, p))) << A::name;
      EXPECT_TRUE(std::isnan(A::apply(std::nanf(""), 1.0f, p))) << A::name;
      EXPECT_TRUE(std::isnan(A::apply(nan, 0.0, p))) << A::name;
    }
  });
}

TEST(Activation, NoLimitIsNoClamp) {
  for (const double x : {-1e6, -50.0, 50.0, 1e6}) {
    EXPECT_EQ(Silu::apply(30.0, x, kNone), 30 * sigmoid(30) * x);
    EXPECT_EQ(SiluThenClamp::apply(30.0, x, kNone), 30 * sigmoid(30) * x);
  }
  EXPECT_EQ(Silu::apply(1e6, 2.0, kNone), 2e6);
  // A limit that nothing reaches changes nothing.
  for (const double g : {-3.0, 0.5, 6.9})
    EXPECT_EQ(Silu::apply(g, 2.0, kNone), Silu::apply(g, 2.0, {.limit = 7.0f}));
}

TEST(Activation, AGateIsNeverClampedFromBelow) {
  const ActivationParams p{.limit = 1.0f};
  for (const double gate : {-1.5, -4.0, -20.0}) {
    EXPECT_DOUBLE_EQ(Silu::apply(gate, 1.0, p), gate * sigmoid(gate));
    EXPECT_NE(Silu::apply(gate, 1.0, p), Silu::apply(-1.0, 1.0, p));
    EXPECT_DOUBLE_EQ(SiluThenClamp::apply(gate, 1.0, p), gate * sigmoid(gate));
  }
}

TEST(Activation, UpIsClampedOnBothSides) {
  const ActivationParams p{.limit = 7.0f};
  EXPECT_EQ(Silu::apply(1.0, 100.0, p), Silu::apply(1.0, 7.0, p));
  EXPECT_EQ(Silu::apply(1.0, -100.0, p), Silu::apply(1.0, -7.0, p));
  EXPECT_EQ(SiluThenClamp::apply(1.0, -100.0, p), SiluThenClamp::apply(1.0, -7.0, p));
}

TEST(Activation, ClampingBeforeIsNotClampingAfter) {
  const ActivationParams p{.limit = 7.0f};
  EXPECT_NEAR(Silu::apply(8.0, 1.0, p), 6.9936, 5e-5);
  EXPECT_EQ(SiluThenClamp::apply(8.0, 1.0, p), 7.0);
  // The largest difference is limit squared times (1 - sigmoid(limit)).
  for (const float limit : {4.0f, 5.0f, 7.0f, 10.0f}) {
    const double x = 2.0 * limit;
    const double difference =
        SiluThenClamp::apply(x, x, {.limit = limit}) - Silu::apply(x, x, {.limit = limit});
    EXPECT_NEAR(difference, double{limit} * limit * (1 - sigmoid(limit)), 1e-12);
  }
}

/// The up branch is clamped before the shift is added: gpt-oss's largest factor is 8 and its smallest -6.
TEST(Activation, TheShiftComesAfterTheClamp) {
  const double gate = 7 * sigmoid(double{kGptOss.slope} * 7);
  EXPECT_DOUBLE_EQ(Silu::apply(100.0, 100.0, kGptOss), gate * 8);
  EXPECT_DOUBLE_EQ(Silu::apply(100.0, -100.0, kGptOss), gate * -6);
}

struct Range {
  double least = kInfinity, most = -kInfinity;
};

template <class A>
Range range_of(const ActivationParams& p) {
  Range range;
  for (double gate = -30; gate <= 30; gate += 0.01)
    for (const double up : {-1000.0, -10.0, -1.0, 0.0, 1.0, 10.0, 1000.0}) {
      const double out = A::apply(gate, up, p);
      range.least = std::min(range.least, out);
      range.most = std::max(range.most, out);
    }
  return range;
}

TEST(Activation, RangesOfTheLimitedForms) {
  const Range v4 = range_of<Silu>({.limit = 10.0f});
  EXPECT_NEAR(v4.most, 99.9955, 5e-5);
  EXPECT_NEAR(v4.least, -99.9955, 5e-5);
  EXPECT_NEAR(Silu::apply(-1.2784645, 1.0, {.limit = 10.0f}), -0.27846, 1e-5);  // the least gate factor

  const Range gpt_oss = range_of<Silu>(kGptOss);
  EXPECT_GT(gpt_oss.least, -42.0);
  EXPECT_LT(gpt_oss.least, -41.99);
  EXPECT_LT(gpt_oss.most, 56.0);
  EXPECT_GT(gpt_oss.most, 55.99);

  const Range step = range_of<SiluThenClamp>({.limit = 7.0f});
  EXPECT_EQ(step.least, -49.0);
  EXPECT_EQ(step.most, 49.0);
  EXPECT_EQ(range_of<SiluThenClamp>({.limit = 16.0f}).most, 256.0);
}

/// Kimi-K3: the gate's factor stays below 4, all of it below 100; a linear beta that is not there leaves up
/// alone.
TEST(Activation, SituSaturates) {
  const Range both = range_of<Situ>({.situ_beta = 4.0f, .situ_linear_beta = 25.0f});
  EXPECT_LE(both.most, 100.0);
  EXPECT_GT(both.most, 99.99);
  EXPECT_GE(both.least, -100.0);
  EXPECT_NEAR(Situ::apply(2.0, 5.0, {.situ_beta = 4.0f, .situ_linear_beta = 25.0f}), 8.0338, 5e-5);
  EXPECT_EQ(Situ::apply(2.0, 5e6, {.situ_beta = 4.0f}), 5e6 * Situ::apply(2.0, 1.0, {.situ_beta = 4.0f}));
  for (const double x : {-50.0, -1.0, 0.0, 3.0, 1e6})
    EXPECT_EQ(Situ::apply(x, 2.0, kNone), Silu::apply(x, 2.0, kNone));
  for (const float x : {kInfinity, 1e30f}) {
    EXPECT_EQ(Situ::apply(x, x, {.situ_beta = 4.0f, .situ_linear_beta = 25.0f}), 100.0f);
    EXPECT_EQ(Situ::apply(1.0f, -x, {.situ_linear_beta = 25.0f}), -25.0f * Situ::apply(1.0f, 1.0f, kNone));
  }
}

TEST(Activation, Relu2) {
  EXPECT_EQ(Relu2::apply(0.0, 3.0, kNone), 9.0);
  EXPECT_EQ(Relu2::apply(0.0, -3.0, kNone), 0.0);
  EXPECT_EQ(Relu2::apply(std::nan(""), 2.0, kNone), 4.0) << "there is no gate to be NaN";
  // It reads no parameter: a limit that somebody sets must not change it.
  EXPECT_EQ(Relu2::apply(0.0, 30.0, {.limit = 7.0f, .slope = 2.0f, .shift = 1.0f}), 900.0);
  EXPECT_FALSE(Relu2::reads.limit || Relu2::reads.slope || Relu2::reads.shift);
}

/// What an activation says it reads is what changes its result.
TEST(Activation, ReadsWhatItSays) {
  each_activation([]<class A>() {
    const float plain = A::apply(9.0f, 9.0f, kNone);
    EXPECT_EQ(A::apply(9.0f, 9.0f, {.limit = 2.0f}) != plain, A::reads.limit) << A::name;
    EXPECT_EQ(A::apply(1.0f, 9.0f, {.slope = 1.7f}) != A::apply(1.0f, 9.0f, kNone), A::reads.slope)
        << A::name;
    EXPECT_EQ(A::apply(9.0f, 9.0f, {.shift = 1.0f}) != plain, A::reads.shift) << A::name;
    EXPECT_EQ(A::apply(9.0f, 9.0f, {.situ_beta = 4.0f}) != plain, A::reads.saturation) << A::name;
    EXPECT_EQ(A::apply(9.0f, 9.0f, {.situ_linear_beta = 4.0f}) != plain, A::reads.saturation) << A::name;
  });
}

TEST(Activation, FarOutItIsTheLimitValueAndNotNan) {
  each_activation([]<class A>() {
    if (!A::gated) return;
    for (const float gate : {-kInfinity, -1e38f, -200.0f}) {
      EXPECT_EQ(A::apply(gate, 1.0f, kNone), 0.0f) << A::name << " " << gate;
      EXPECT_NEAR(A::apply(double{gate}, 1.0, kNone), 0.0, 1e-80) << A::name << " " << gate;
    }
    EXPECT_EQ(A::apply(200.0f, 1.0f, kNone), 200.0f) << A::name;
    EXPECT_EQ(A::apply(kInfinity, 1.0f, kNone), kInfinity) << A::name;
  });
}

}  // namespace
}  // namespace sluice
