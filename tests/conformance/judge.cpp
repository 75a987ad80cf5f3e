// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/judge.h"

#include <gtest/gtest.h>

#include "core/bits.h"
#include "testing/closeness.h"
#include "testing/device_for.h"

namespace sluice::conformance {
namespace {

/// Equal as numbers (0 equals -0), every one.
void expect_equal(const std::vector<float>& got, const std::vector<double>& want, int width) {
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    // Where float32 does not hold the result the layer is not an exact one and the test is at fault.
    ASSERT_EQ(want[i], static_cast<double>(static_cast<float>(want[i]))) << "the drawn layer is not exact";
    if (got[i] == static_cast<float>(want[i])) continue;
    if (wrong++ == 0) first = i;
  }
  const std::size_t columns = static_cast<std::size_t>(width);
  EXPECT_EQ(wrong, 0u) << "of " << want.size() << " elements, first token " << first / columns << ", element "
                       << first % columns << ": got " << got[first] << ", want " << want[first];
}

}  // namespace

void expect_close(const char* what, const testing::Comparison& comparison) {
  constexpr double kBound = 0.51;
  constexpr int kFewElements = 8;
  const testing::Closeness close = testing::closeness(comparison);
  if (comparison.unit == testing::kFloat32Unit) {
    EXPECT_TRUE(close.ok()) << what << ": " << close.str();
    return;
  }
  EXPECT_TRUE(close.misplaced == 0 && close.worst_element_units <= kBound) << what << ": " << close.str();
  EXPECT_TRUE(comparison.width < kFewElements || close.ok()) << what << ": " << close.str();
}

namespace {

/// An exact layer's norm is exact for one epsilon.
Case for_numbers(Case made, testing::Numbers numbers) {
  std::optional<LatentSpec>& latent = made.spec.latent;
  if (numbers == testing::Numbers::exact && latent && latent->norm_epsilon)
    latent->norm_epsilon = testing::kExactEpsilon;
  return made;
}

}  // namespace

Problem::Problem(const Case& made, testing::Numbers numbers, testing::CallShape shape, std::uint64_t seed)
    : made_(for_numbers(made, numbers)),
      numbers_(numbers),
      weights_(draw_weights(made_.spec, numbers, seed)),
      call_(draw_call(made_.spec, numbers, shape, seed + 1)),
      lora_(testing::draw_lora(made_.spec, numbers, shape.tokens, seed + 2)) {
  define();
}

Problem Problem::copy() const {
  Problem other = *this;
  other.call_.hidden.data = other.call_.rows.data();
  return other;
}

Problem Problem::with_routing(std::vector<std::int32_t> ids, std::vector<float> weights) const {
  Problem other = copy();
  other.call_.ids = std::move(ids);
  other.call_.weights = std::move(weights);
  other.define();
  return other;
}

Problem Problem::with_adapter_ids(std::vector<std::int32_t> ids) const {
  Problem other = copy();
  other.lora_.ids = std::move(ids);
  other.define();
  return other;
}

Problem Problem::with_value(int token, int element, float value) const {
  Problem other = copy();
  store<float>(other.call_.rows.data() + token * call_.hidden.row_stride + 4 * std::ptrdiff_t{element},
               value);
  other.define();
  return other;
}

void Problem::define() {
  definition_ = defined(testing::Rounding::none);
  rounded_.reset();
}

testing::ReferenceResult Problem::defined(testing::Rounding rounding) const {
  const std::vector<const LoraAdapter*> adapters = lora_.pointers();
  return testing::reference_run({.spec = made_.spec,
                                 .weights = weights_,
                                 .hidden = call_.hidden,
                                 .routing = call_.routing(made_.spec.routed.top_k),
                                 .expert_map = made_.expert_map,
                                 .adapters = adapters,
                                 .adapter_ids = lora_.ids,
                                 .rounding = rounding});
}

const testing::ReferenceResult& Problem::definition(testing::Rounding rounding) const {
  if (rounding == testing::Rounding::none) return definition_;
  if (!rounded_) rounded_ = defined(rounding);
  return *rounded_;
}

Layer Problem::layer(const Backend& backend, int threads) const {
  const Plan plan = choose({.layer = made_.spec,
                            .device = testing::device_for(backend.name),
                            .tokens = {1},
                            .by_name = std::string(backend.name)});
  return Layer(plan, weights_, {.expert_map = made_.expert_map, .executor = make_thread_team(threads)});
}

Outputs Problem::run(const Layer& layer, int tokens_at_once) const {
  return run(layer, tokens_at_once, lora_.adapters);
}

Outputs Problem::run(const Layer& layer, int tokens_at_once, std::span<const LoraAdapter> of_call) const {
  const int tokens = call_.hidden.rows;
  const std::size_t elements =
      static_cast<std::size_t>(tokens) * static_cast<std::size_t>(call_.hidden.width);
  constexpr float kUnwritten = -12345;
  Outputs out{std::vector<float>(elements, kUnwritten), std::vector<float>(elements, kUnwritten),
              testing::unit_of(layer.plan().chosen), testing::rounding_of(layer.plan().chosen)};
  std::vector<const LoraAdapter*> adapters;
  if (!lora_.ids.empty())
    for (const LoraAdapter& adapter : of_call) adapters.push_back(&adapter);
  std::vector<std::byte> workspace(layer.workspace_bytes(tokens_at_once == 0 ? tokens : tokens_at_once));
  layer.run({.hidden = call_.hidden,
             .routing = call_.routing(made_.spec.routed.top_k),
             .adapters = adapters,
             .adapter_ids = lora_.ids,
             .experts_out = out.experts_out.data(),
             .block_out = out.block_out.data(),
             .workspace = workspace});
  return out;
}

void Problem::expect_right(const Outputs& out) const {
  const int width = made_.spec.hidden();
  const testing::ReferenceResult& definition = this->definition(out.rounding);
  // Numbers that int8 holds are others than these.
  if (exact() && out.unit == testing::kFloat32Unit && out.rounding == testing::Rounding::none) {
    expect_equal(out.experts_out, definition_.experts_out, width);
    expect_equal(out.block_out, definition_.block_out, width);
    return;
  }
  expect_close(out, definition);
}

void Problem::expect_close(const Outputs& out, const testing::ReferenceResult& definition) const {
  const int width = made_.spec.hidden();
  conformance::expect_close("experts_out", {.got = out.experts_out,
                                            .want = definition.experts_out,
                                            .magnitude = definition.experts_magnitude,
                                            .width = width,
                                            .unit = out.unit});
  conformance::expect_close("block_out", {.got = out.block_out,
                                          .want = definition.block_out,
                                          .magnitude = definition.block_magnitude,
                                          .width = width,
                                          .unit = out.unit});
}

void Problem::check(const Backend& backend) const {
  SCOPED_TRACE(::testing::Message() << backend.name << ", " << made_.name << ", " << call_.hidden.rows
                                    << " tokens, " << (exact() ? "exact" : "noisy"));
  expect_right(run(layer(backend)));
}

}  // namespace sluice::conformance
