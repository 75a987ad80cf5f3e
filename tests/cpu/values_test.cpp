// SPDX-License-Identifier: Apache-2.0
// NaN, infinities and the smallest numbers: they come out where the definition has them, and nowhere else.
#include <cmath>
#include <limits>

#include "core/bits.h"
#include "tests/cpu/subject.h"

namespace sluice::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CpuValues : public Subject {
 protected:
  /// NaN and infinities at the same places; returns how many there are.
  int expect_same_places(const DrawnLayer& layer, const DrawnCall& call) {
    const std::vector<float> got = run_once(layer, call);
    const std::vector<double> want = define(layer, call).out;
    int special = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), std::isnan(want[i])) << layer.spec.formats.up.str() << " element " << i;
      EXPECT_EQ(std::isinf(got[i]), std::isinf(want[i])) << layer.spec.formats.up.str() << " element " << i;
      special += !std::isfinite(want[i]);
    }
    return special;
  }

  static ExpertsSpec spec_of(Format format) { return plain_spec(format, 70, 40); }
};

TEST_P(CpuValues, OfTheInput) {
  for (Format format : formats())
    for (float value : {kNaN, kInfinity, -kInfinity})
      for (int tokens : {2, 9}) {
        const ExpertsSpec spec = spec_of(format);
        const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
        DrawnCall call = draw_call(spec, tokens, Numbers::normal, 2);
        call.set(spec, 1, spec.hidden - 1, value);  // the last column: padding must not spread it
        EXPECT_EQ(expect_same_places(layer, call), spec.hidden) << format.str() << ": one token of all";
      }
}

TEST_P(CpuValues, OfRoutingWeights) {
  const ExpertsSpec spec = spec_of(format_named("mxfp4"));
  const DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
  for (float value : {kNaN, kInfinity}) {
    DrawnCall call = draw_call(spec, 3, Numbers::normal, 2);
    call.weights[2] = value;
    EXPECT_EQ(expect_same_places(layer, call), spec.hidden);
  }
}

/// Puts one code into the down matrix of expert 0: only its row may show it.
TEST_P(CpuValues, OfNaNCodes) {
  for (const char* name : {"fp8_block128", "fp8_channel", "fp8_tensor", "mxfp8"})
    for (int code : {0x7F, 0xFF})
      for (int tokens : {1, 9}) {
        ExpertsSpec spec = spec_of(format_named(name));
        spec.experts = spec.local_experts = 1;
        spec.top_k = 1;
        DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
        format::Encoded& down = *layer.matrices[2];
        down.codes[static_cast<std::size_t>(13 * down.matrix.row_stride + 39)] = std::byte(code);
        const DrawnCall call = draw_call(spec, tokens, Numbers::normal, 2);
        EXPECT_EQ(expect_same_places(layer, call), tokens) << name;
      }
}

TEST_P(CpuValues, OfNaNScales) {
  struct Case {
    const char* format;
    std::uint8_t code;
  };
  for (const Case& test :
       {Case{"mxfp4", 0xFF}, Case{"mxfp8", 0xFF}, Case{"nvfp4", 0x7F}, Case{"nvfp4", 0xFF}}) {
    ExpertsSpec spec = spec_of(format_named(test.format));
    spec.experts = spec.local_experts = 1;
    spec.top_k = 1;
    DrawnLayer layer = draw_layer(spec, Numbers::normal, 1);
    format::Encoded& down = *layer.matrices[2];
    down.scales[static_cast<std::size_t>(13 * down.matrix.scales.row_stride)] = std::byte(test.code);
    for (int tokens : {1, 9})
      EXPECT_EQ(expect_same_places(layer, draw_call(spec, tokens, Numbers::normal, 2)), tokens)
          << test.format;
  }
}

TEST_P(CpuValues, OfTheSmallestScale) {
  // E8M0 code 0 is 2^-127, which is no normal float32.
  for (const char* name : {"mxfp4", "mxfp8"}) {
    ExpertsSpec spec = spec_of(format_named(name));
    spec.experts = spec.local_experts = 1;
    spec.top_k = 1;
    spec.activation = activation_named("relu2");
    spec.formats.gate.reset();
    DrawnLayer layer = draw_layer(spec, Numbers::exact, 1);
    format::Encoded& down = *layer.matrices[1];
    std::fill(down.scales.begin(), down.scales.end(), std::byte{0});
    for (int tokens : {1, 9}) {
      DrawnCall call = draw_call(spec, tokens, Numbers::exact, 2);
      std::fill(call.weights.begin(), call.weights.end(), 1.0f);
      const std::vector<float> got = run_once(layer, call);
      const std::vector<double> want = define(layer, call).out;
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << name << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuValues, ::testing::ValuesIn(kSubjects), subject_name);

}  // namespace
}  // namespace sluice::testing
