// SPDX-License-Identifier: Apache-2.0
// Every number of a spec that can be wrong.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/engine/small_layer.h"

namespace sluice {
namespace {

using Change = std::function<void(LayerSpec&)>;

void refused(const char* what, const Change& change) {
  LayerSpec spec = small::spec();
  change(spec);
  try {
    validate(spec);
    ADD_FAILURE() << what << ": accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument) << what;
    EXPECT_EQ(error.info().code, "bad_spec") << what;
    EXPECT_FALSE(error.info().why.empty() || error.info().todo.empty()) << what;
  }
}

TEST(ValidateSpec, AcceptsTheSmallLayer) { EXPECT_NO_THROW(validate(small::spec())); }

TEST(ValidateSpec, Sizes) {
  refused("hidden", [](LayerSpec& spec) { spec.routed.hidden = 0; });
  refused("intermediate", [](LayerSpec& spec) { spec.routed.intermediate = -32; });
  refused("experts", [](LayerSpec& spec) { spec.routed.experts = 0; });
  refused("local experts", [](LayerSpec& spec) { spec.routed.local_experts = 9; });
  refused("top_k 0", [](LayerSpec& spec) { spec.routed.top_k = spec.router.top_k = 0; });
  refused("top_k 9 of 8", [](LayerSpec& spec) { spec.routed.top_k = spec.router.top_k = 9; });
}

TEST(ValidateSpec, GroupsAlongARowAreWhole) {
  refused("48 columns of mxfp4", [](LayerSpec& spec) { spec.routed.intermediate = 48; });
  LayerSpec ragged = small::spec();
  const Format block = Formats::of<format::Fp8Block128>();
  ragged.routed.formats = {block, block, block};
  ragged.routed.intermediate = 50;
  EXPECT_NO_THROW(validate(ragged)) << "blocks of 128x128 may end early";
}

TEST(ValidateSpec, Groupings) {
  refused("groups of mxfp4", [](LayerSpec& spec) { spec.routed.formats.up_grouping.columns = 32; });
  refused("zero points of bf16",
          [](LayerSpec& spec) { spec.shared->experts.formats.down_grouping.zero_points = true; });
  LayerSpec integers = small::spec();
  const Format int3 = Formats::of<format::Int3>();
  integers.routed.formats = {int3, int3, int3};
  EXPECT_NO_THROW(validate(integers)) << "a scale a row";
  integers.routed.formats.up_grouping.columns = 64;
  EXPECT_NO_THROW(validate(integers)) << "the last group of 96 columns has 32";
  integers.routed.formats.up_grouping.columns = -1;
  EXPECT_THROW(validate(integers), Error);
  integers.routed.formats.up_grouping.columns = 0;
  integers.routed.activation = Activations::of<activation::Relu2>();
  integers.routed.params = {};
  integers.routed.formats.gate.reset();
  EXPECT_NO_THROW(validate(integers));
  integers.routed.formats.gate_grouping.columns = 32;
  EXPECT_THROW(validate(integers), Error) << "of a gate that is not there";
}

TEST(ValidateSpec, AGateExactlyWhenTheActivationHasOne) {
  refused("no gate", [](LayerSpec& spec) { spec.routed.formats.gate.reset(); });
  refused("a gate too many", [](LayerSpec& spec) {
    spec.routed.activation = Activations::of<activation::Relu2>();
    spec.routed.params = {};
  });
}

TEST(ValidateSpec, Parameters) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  refused("NaN limit", [=](LayerSpec& spec) { spec.routed.params.limit = nan; });
  refused("negative limit", [](LayerSpec& spec) { spec.routed.params.limit = -7; });
  refused("limit of zero", [](LayerSpec& spec) { spec.routed.params.limit = 0; });
  refused("infinite slope", [=](LayerSpec& spec) { spec.routed.params.slope = infinity; });
  refused("NaN shift", [=](LayerSpec& spec) { spec.routed.params.shift = nan; });
  refused("limit of the shared expert", [=](LayerSpec& spec) { spec.shared->experts.params.limit = nan; });
}

TEST(ValidateSpec, NoParameterThatTheActivationDoesNotRead) {
  const auto with = [](Activation activation, ActivationParams params) {
    return [=](LayerSpec& spec) {
      spec.routed.activation = activation;
      spec.routed.params = params;
    };
  };
  refused("gelu with a limit", with(Activations::of<activation::GeluTanh>(), {.limit = 7}));
  refused("gelu with a slope", with(Activations::of<activation::GeluErf>(), {.slope = 1.702f}));
  refused("silu_then_clamp with a shift", with(Activations::of<activation::SiluThenClamp>(), {.shift = 1}));
  LayerSpec fine = small::spec();
  with(Activations::of<activation::SiluThenClamp>(), {.limit = 7})(fine);
  EXPECT_NO_THROW(validate(fine));
}

TEST(ValidateSpec, Router) {
  refused("other experts", [](LayerSpec& spec) { spec.router.experts = 7; });
  refused("other top_k", [](LayerSpec& spec) { spec.router.top_k = 2; });
  refused("groups that do not divide", [](LayerSpec& spec) { spec.router.groups = 3; });
  refused("no groups", [](LayerSpec& spec) { spec.router.groups = 0; });
  refused("more groups kept", [](LayerSpec& spec) { spec.router.groups_kept = 2; });
  refused("too few experts in the groups kept", [](LayerSpec& spec) {
    spec.router.groups = 4;
    spec.router.groups_kept = 1;
  });
  refused("scale", [](LayerSpec& spec) { spec.router.scale = std::numeric_limits<float>::infinity(); });
}

TEST(ValidateSpec, Shared) {
  refused("two shared experts", [](LayerSpec& spec) { spec.shared->experts.experts = 2; });
  refused("another hidden", [](LayerSpec& spec) { spec.shared->experts.hidden = 64; });
  refused("weight on input", [](LayerSpec& spec) { spec.shared->experts.weight_on_input = true; });
}

}  // namespace
}  // namespace sluice
